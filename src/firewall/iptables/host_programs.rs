//! Finds the iptables programs of the host.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::firewall::error::Error;
use crate::redirect::Family;
use crate::redirect::backend_order::Backend;

/// Directories to search after those in `PATH`. Some container runtimes leave `PATH` empty.
const FALLBACK_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The programs of the host that list and restore the rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPrograms {
    pub backend: Backend,
    pub command: PathBuf,
    pub restore: PathBuf,
}

/// Finds the programs of `backend`. If the host lacks them, uses the first of nft, plain and legacy
/// whose programs it has, as upstream does.
pub fn find_programs(backend: Backend, family: Family) -> Result<HostPrograms, Error> {
    find_in(&program_dirs(), backend, family)
}

/// Finds the program of `backend` that lists rules. Returns `None` if the host lacks the program.
pub fn find_command(backend: Backend, family: Family) -> Option<PathBuf> {
    find_executable(&program_dirs(), &program_name(backend, family))
}

fn program_dirs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    dirs.extend(FALLBACK_DIRS.map(PathBuf::from));
    dirs
}

/// Searches `dirs` for the programs, see [`find_programs`].
fn find_in(dirs: &[PathBuf], backend: Backend, family: Family) -> Result<HostPrograms, Error> {
    if let Some(programs) = find_pair(dirs, backend, family) {
        return Ok(programs);
    }
    let others = [Backend::Nft, Backend::Plain, Backend::Legacy];
    for other in others {
        if let Some(programs) = find_pair(dirs, other, family) {
            let wanted = program_name(backend, family);
            tracing::warn!(
                "linkerd-cni: the node does not have both {wanted} and {wanted}-restore, using {}",
                programs.command.display()
            );
            return Ok(programs);
        }
    }
    let wanted = others.map(|other| program_name(other, family)).join(", ");
    Err(Error::NoPrograms { wanted })
}

/// Finds the program that lists rules and the program that restores them.
fn find_pair(dirs: &[PathBuf], backend: Backend, family: Family) -> Option<HostPrograms> {
    let name = program_name(backend, family);
    let command = find_executable(dirs, &name)?;
    let restore = find_executable(dirs, &format!("{name}-restore"))?;
    Some(HostPrograms { backend, command, restore })
}

fn find_executable(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

/// Returns whether any user may execute the file. Checks the mode instead of calling access(2).
/// SELinux may deny access(2), and the program would count as missing. The error of starting the
/// program names the actual cause.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn program_name(backend: Backend, family: Family) -> String {
    let base = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    match backend {
        Backend::Plain => base.to_owned(),
        backend => format!("{base}-{backend}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
    fn missing_programs_are_replaced_by_those_of_the_first_complete_backend() {
        let nft = ["iptables-nft", "iptables-nft-restore"];
        let plain = ["iptables", "iptables-restore"];
        let found_plain = Some((Backend::Plain, "iptables"));
        let found_nft = Some((Backend::Nft, "iptables-nft"));
        let cases = [
            ("both", [nft, plain].concat(), Backend::Plain, found_plain),
            ("only nft", nft.to_vec(), Backend::Legacy, found_nft),
            ("only plain", plain.to_vec(), Backend::Nft, found_plain),
            (
                "half a pair",
                vec!["iptables-nft", "iptables", "iptables-restore"],
                Backend::Nft,
                found_plain,
            ),
            ("none", vec![], Backend::Nft, None),
        ];
        for (name, programs, backend, wanted) in cases {
            let dir = host(&programs);
            let found = find_in(&[dir.path().to_owned()], backend, Family::Ipv4);
            let found = found.ok().map(|programs| (programs.backend, programs.command));
            let wanted = wanted.map(|(backend, name)| (backend, dir.path().join(name)));
            assert_eq!(found, wanted, "{name}");
        }
    }

    #[test]
    fn without_iptables_the_error_lists_the_programs_searched_for() {
        let error = find_in(&[], Backend::Legacy, Family::Ipv6).unwrap_err();
        assert_eq!(
            error.to_string(),
            "none of ip6tables-nft, ip6tables, ip6tables-legacy, together with its -restore \
             program, is in PATH, /usr/sbin, /sbin, /usr/bin or /bin of the node"
        );
    }
}
