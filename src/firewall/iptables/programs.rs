//! Finds the iptables programs of the host.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Error;
use crate::redirect::Family;
use crate::redirect::backend::Variant;

/// Searched after `PATH`, which some runtimes leave empty.
const FALLBACK_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A pair of programs of the same variant and family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub variant: Variant,
    pub command: PathBuf,
    pub restore: PathBuf,
}

/// Finds the programs for `variant` and `family`. If the host lacks them, uses the first complete
/// pair of nft, plain and legacy, and logs a warning.
///
/// # Errors
/// Fails if the host has no complete pair.
pub fn find(variant: Variant, family: Family) -> Result<Programs, Error> {
    find_in(&dirs(), variant, family)
}

/// Whether the programs for exactly `variant` and `family` exist.
pub fn exist(variant: Variant, family: Family) -> bool {
    pair(&dirs(), variant, family).is_some()
}

/// The directories in which programs are searched.
fn dirs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .chain(FALLBACK_DIRS.map(PathBuf::from))
        .collect()
}

/// Finds the programs for exactly `variant` and `family`.
fn pair(dirs: &[PathBuf], variant: Variant, family: Family) -> Option<Programs> {
    let name = name(variant, family);
    let command = executable(dirs, &name)?;
    let restore = executable(dirs, &format!("{name}-restore"))?;
    Some(Programs { variant, command, restore })
}

fn find_in(dirs: &[PathBuf], variant: Variant, family: Family) -> Result<Programs, Error> {
    let variants = [variant, Variant::Nft, Variant::Plain, Variant::Legacy];
    for (index, &candidate) in variants.iter().enumerate() {
        let Some(programs) = pair(dirs, candidate, family) else {
            continue;
        };
        if index > 0 {
            let wanted = name(variant, family);
            tracing::warn!(
                "linkerd-cni: the node does not have both {wanted} and {wanted}-restore, using {}",
                programs.command.display()
            );
        }
        return Ok(programs);
    }
    Err(Error::NoPrograms {
        wanted: variants[1..]
            .iter()
            .map(|&variant| name(variant, family))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// Returns the program name, such as `ip6tables-nft`.
fn name(variant: Variant, family: Family) -> String {
    let base = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    match variant {
        Variant::Nft => format!("{base}-nft"),
        Variant::Legacy => format!("{base}-legacy"),
        Variant::Plain => base.to_owned(),
    }
}

fn executable(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
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
    fn a_missing_pair_is_replaced_by_the_first_complete_one() {
        let nft = ["iptables-nft", "iptables-nft-restore"];
        let plain = ["iptables", "iptables-restore"];
        let found_plain = Some((Variant::Plain, "iptables"));
        let found_nft = Some((Variant::Nft, "iptables-nft"));
        let cases = [
            ("both", [nft, plain].concat(), Variant::Plain, found_plain),
            ("only nft", nft.to_vec(), Variant::Legacy, found_nft),
            ("only plain", plain.to_vec(), Variant::Nft, found_plain),
            (
                "half a pair",
                vec!["iptables-nft", "iptables", "iptables-restore"],
                Variant::Nft,
                found_plain,
            ),
            ("none", vec![], Variant::Nft, None),
        ];
        for (name, programs, variant, wanted) in cases {
            let dir = host(&programs);
            let found = find_in(&[dir.path().to_owned()], variant, Family::Ipv4);
            let found = found.ok().map(|programs| (programs.variant, programs.command));
            let wanted = wanted.map(|(variant, name)| (variant, dir.path().join(name)));
            assert_eq!(found, wanted, "{name}");
        }
    }

    #[test]
    fn without_iptables_the_error_lists_the_programs_searched_for() {
        let error = find_in(&[], Variant::Legacy, Family::Ipv6).unwrap_err();
        assert_eq!(
            error.to_string(),
            "none of ip6tables-nft, ip6tables, ip6tables-legacy, together with its -restore program, is in PATH, /usr/sbin, /sbin, /usr/bin or /bin of the node"
        );
    }
}
