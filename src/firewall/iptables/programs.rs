//! Which iptables programs of the host to run.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Error, Kind};
use crate::rules::Family;

/// Looked into after `PATH`, which is bare in some runtimes' environment.
const FALLBACK_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A pair that belongs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub command: PathBuf,
    pub restore: PathBuf,
}

/// The host's programs for `kind` and `family`; where the host lacks them, the first
/// complete pair of nft, plain and legacy (contract 4.7).
pub fn find(kind: Kind, family: Family) -> Result<Programs, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .chain(FALLBACK_DIRS.map(PathBuf::from))
        .collect();
    find_in(&dirs, kind, family)
}

fn find_in(dirs: &[PathBuf], kind: Kind, family: Family) -> Result<Programs, Error> {
    let kinds = [kind, Kind::Nft, Kind::Plain, Kind::Legacy];
    for (index, &candidate) in kinds.iter().enumerate() {
        let name = name(candidate, family);
        let found = executable(dirs, &name).zip(executable(dirs, &format!("{name}-restore")));
        if let Some((command, restore)) = found {
            if index > 0 {
                tracing::warn!(
                    "linkerd-cni: the host has no {}, using {}",
                    self::name(kind, family),
                    command.display()
                );
            }
            return Ok(Programs { command, restore });
        }
    }
    Err(Error::NoPrograms {
        wanted: kinds[1..]
            .iter()
            .map(|&kind| name(kind, family))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn name(kind: Kind, family: Family) -> String {
    let base = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    match kind {
        Kind::Nft => format!("{base}-nft"),
        Kind::Legacy => format!("{base}-legacy"),
        Kind::Plain => base.to_owned(),
    }
}

fn executable(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter()
        .map(|dir| dir.join(name))
        .find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn host(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    #[test]
    fn the_first_complete_pair_stands_in_for_a_missing_one() {
        let nft = ["iptables-nft", "iptables-nft-restore"];
        let plain = ["iptables", "iptables-restore"];
        let cases: [(&str, Vec<&str>, Kind, Option<&str>); 5] = [
            ("both", [nft, plain].concat(), Kind::Plain, Some("iptables")),
            ("only nft", nft.to_vec(), Kind::Legacy, Some("iptables-nft")),
            ("only plain", plain.to_vec(), Kind::Nft, Some("iptables")),
            (
                "half a pair",
                vec!["iptables-nft", "iptables", "iptables-restore"],
                Kind::Nft,
                Some("iptables"),
            ),
            ("none", vec![], Kind::Nft, None),
        ];
        for (name, programs, kind, wanted) in cases {
            let dir = host(&programs);
            let found = find_in(&[dir.path().to_owned()], kind, Family::Ipv4);
            let command = found.ok().map(|programs| programs.command);
            assert_eq!(command, wanted.map(|name| dir.path().join(name)), "{name}");
        }
    }

    #[test]
    fn a_host_without_iptables_is_told_what_was_looked_for() {
        let error = find_in(&[], Kind::Legacy, Family::Ipv6).unwrap_err();
        assert_eq!(
            error.to_string(),
            "none of ip6tables-nft, ip6tables, ip6tables-legacy is in PATH, /usr/sbin or /sbin of the host"
        );
    }
}
