//! Address families of a pod's redirect rules.

use crate::rules::Family;

/// Which address families of a pod get redirect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    Ipv4,
    Both,
    /// IPv4, and IPv6 if it can be programmed: the pod has no IPv6 address, but may get one later.
    /// A pod with IPv4 rules only is complete, as older plugin versions installed no others.
    OptionalIpv6,
}

impl Families {
    /// The families to install rules for.
    pub fn wanted(self) -> &'static [Family] {
        match self {
            Families::Ipv4 => &[Family::Ipv4],
            Families::Both | Families::OptionalIpv6 => &[Family::Ipv4, Family::Ipv6],
        }
    }

    /// The families without whose rules the pod is incomplete.
    pub(super) fn required(self) -> &'static [Family] {
        match self {
            Families::Ipv4 | Families::OptionalIpv6 => &[Family::Ipv4],
            Families::Both => &[Family::Ipv4, Family::Ipv6],
        }
    }

    /// Runs `install` for the wanted families. If that fails and IPv6 is optional, runs it for IPv4.
    pub(super) fn install<T, E: std::fmt::Display>(
        self,
        install: impl Fn(&'static [Family]) -> Result<T, E>,
    ) -> Result<T, E> {
        match install(self.wanted()) {
            Err(error) if self == Families::OptionalIpv6 => {
                let installed = install(self.required())?;
                tracing::warn!(
                    "linkerd-cni: IPv6 is not redirected in this pod, which has no IPv6 address: {error}"
                );
                Ok(installed)
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_optional_ipv6_is_left_out_where_it_cannot_be_programmed() {
        let without_ipv6 = |families: &'static [Family]| match families.contains(&Family::Ipv6) {
            true => Err("no IPv6"),
            false => Ok(families.len()),
        };
        assert_eq!(Families::Ipv4.install(without_ipv6), Ok(1));
        assert_eq!(Families::Both.install(without_ipv6), Err("no IPv6"));
        assert_eq!(Families::OptionalIpv6.install(without_ipv6), Ok(1));
        assert_eq!(Families::OptionalIpv6.install(|all| Ok::<_, &str>(all.len())), Ok(2));
        assert_eq!(Families::OptionalIpv6.install(|_| Err::<(), _>("neither")), Err("neither"));
    }
}
