//! Address families of a pod's redirect rules.

use nix::errno::Errno;

use super::Error;
use crate::rules::Family;

/// What iptables programs print if kernel or node lack the address family or its table `nat`.
const UNSUPPORTED: [&str; 7] = [
    "does not exist",
    "do you need to insmod?",
    "Operation not supported",
    "Protocol not supported",
    "Address family not supported",
    "No such file or directory",
    "No chain/target/match by that name",
];

/// Which address families of a pod get redirect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    Ipv4,
    Both,
    /// IPv4, and IPv6 if it can be programmed: the pod has no IPv6 address, but may get one later.
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

    /// Runs `run` for the wanted families. If IPv6 is optional and not supported, runs it for IPv4.
    pub(super) fn run<T>(
        self,
        run: impl Fn(&'static [Family]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match run(self.wanted()) {
            Err(error) if self == Families::OptionalIpv6 && is_unsupported(&error) => {
                let done = run(Families::Ipv4.wanted())?;
                tracing::warn!(
                    "linkerd-cni: IPv6 is not redirected in this pod, which has no IPv6 address: {error}"
                );
                Ok(done)
            }
            result => result,
        }
    }
}

/// Returns whether an error for IPv6 lasts, because kernel or node lack what all backends need. Other
/// errors may be gone when the runtime retries the pod. An error that concerns IPv4 too may count:
/// IPv4 alone then fails as well.
pub(super) fn is_unsupported(error: &Error) -> bool {
    match error {
        Error::Native { source, .. } => matches!(
            source,
            Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::ENOENT
        ),
        Error::NoPrograms { .. } | Error::OldKernel { .. } => true,
        Error::Restore { stderr: message, .. } | Error::List { message, .. } => {
            UNSUPPORTED.iter().any(|text| message.contains(text))
        }
        Error::NoBackend { errors } => errors.iter().all(is_unsupported),
        Error::Start { .. }
        | Error::Unread { .. }
        | Error::TooLong { .. }
        | Error::Deadline { .. }
        | Error::Locked { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(source: Errno) -> Error {
        Error::Native { subject: "table ip6 x".to_owned(), text: None, remedy: None, source }
    }

    fn restore(stderr: &str) -> Error {
        Error::Restore { program: "ip6tables-restore".into(), stderr: stderr.to_owned() }
    }

    fn locked() -> Error {
        Error::Locked { program: "ip6tables-restore".into(), lock: String::new() }
    }

    /// Installs rules of `families` where IPv6 fails with `error`.
    fn install(families: Families, error: fn() -> Error) -> Result<usize, String> {
        let install = |families: &'static [Family]| match families.contains(&Family::Ipv6) {
            true => Err(error()),
            false => Ok(families.len()),
        };
        families.run(install).map_err(|error| error.to_string())
    }

    #[test]
    fn only_optional_ipv6_is_left_out_where_it_is_not_supported() {
        let unsupported = || native(Errno::EOPNOTSUPP);
        assert_eq!(install(Families::Ipv4, unsupported), Ok(1));
        assert_eq!(install(Families::Both, unsupported), Err(unsupported().to_string()));
        assert_eq!(install(Families::OptionalIpv6, unsupported), Ok(1));
        let all = Families::OptionalIpv6.run(|families| Ok(families.len()));
        assert_eq!(all.unwrap(), 2);
        let neither = Families::OptionalIpv6.run::<()>(|_| Err(unsupported()));
        assert_eq!(neither.unwrap_err().to_string(), unsupported().to_string());
    }

    #[test]
    fn optional_ipv6_is_required_after_an_error_that_may_pass() {
        let no_backend = |errors| Error::NoBackend { errors };
        for (error, wanted) in [
            (native(Errno::ENOENT), true),
            (native(Errno::EPERM), false),
            (native(Errno::EMSGSIZE), false),
            (native(Errno::ENOBUFS), false),
            (native(Errno::ENOMEM), false),
            (native(Errno::ETIMEDOUT), false),
            (restore("can't initialize table `nat': Table does not exist"), true),
            (restore("generation id: Operation not supported"), true),
            (restore("can't initialize table `nat': Permission denied"), false),
            (restore("exit status: 1"), false),
            (locked(), false),
            (no_backend(vec![native(Errno::EOPNOTSUPP), restore("Table does not exist")]), true),
            (no_backend(vec![native(Errno::EOPNOTSUPP), locked()]), false),
        ] {
            assert_eq!(is_unsupported(&error), wanted, "{error}");
        }
    }
}
