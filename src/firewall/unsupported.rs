//! Tells what kernel or node do not support, and leaves out IPv6 there if the pod can do without.

use nix::errno::Errno;

use super::Error;
use crate::redirect::{Families, Family};

/// What iptables programs print if kernel or node lack the address family or its table `nat`.
const UNSUPPORTED: [&str; 8] = [
    "does not exist",
    // Of iptables-nft 1.8.9, if the kernel has nfnetlink but no nf_tables.
    "Could not fetch rule set generation id: Invalid argument",
    "do you need to insmod?",
    "Operation not supported",
    "Protocol not supported",
    "Address family not supported",
    "No such file or directory",
    "No chain/target/match by that name",
];

/// Runs `run` for the wanted families. If IPv6 is optional and not supported, runs it for IPv4.
pub fn run_for<T>(
    families: Families,
    run: impl Fn(&'static [Family]) -> Result<T, Error>,
) -> Result<T, Error> {
    match run(families.wanted()) {
        Err(error) if families == Families::OptionalIpv6 && is_unsupported(&error) => {
            let done = run(Families::Ipv4.wanted())?;
            tracing::warn!(
                "linkerd-cni: IPv6 is not redirected in this pod, which has no IPv6 address: {error}"
            );
            Ok(done)
        }
        result => result,
    }
}

/// Returns whether an error for IPv6 lasts, because kernel or node lack what all backends need. Other
/// errors may be gone when the runtime retries the pod. An error that concerns IPv4 too may count:
/// IPv4 alone then fails as well.
pub fn is_unsupported(error: &Error) -> bool {
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
        | Error::Incomparable { .. }
        | Error::Deadline { .. }
        | Error::Locked { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(source: Errno) -> Error {
        Error::Native { subject: "table ip6 x".to_owned(), remedy: None, source }
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
        run_for(families, install).map_err(|error| error.to_string())
    }

    #[test]
    fn only_optional_ipv6_is_left_out_where_it_is_not_supported() {
        let unsupported = || native(Errno::EOPNOTSUPP);
        assert_eq!(install(Families::Ipv4, unsupported), Ok(1));
        assert_eq!(install(Families::Both, unsupported), Err(unsupported().to_string()));
        assert_eq!(install(Families::OptionalIpv6, unsupported), Ok(1));
        let all = run_for(Families::OptionalIpv6, |families| Ok(families.len()));
        assert_eq!(all.unwrap(), 2);
        let neither = run_for::<()>(Families::OptionalIpv6, |_| Err(unsupported()));
        assert_eq!(neither.unwrap_err().to_string(), unsupported().to_string());
    }

    #[test]
    fn ipv6_is_left_out_only_after_an_error_that_shows_missing_support() {
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
            (restore("Could not fetch rule set generation id: Invalid argument"), true),
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
