//! The plugin without iptables on the host.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pods;
use crate::scene::Scene;

#[test]
fn meshed_pods_are_redirected_on_a_host_that_has_no_iptables() {
    let scene = Scene::installed(&[]);
    let Scene { pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    let away = Away::iptables();
    assert!(!Path::new("/usr/sbin/iptables").exists());
    pods.start(&[pods::meshed("meshed")]);
    pods.assert_answers("client", "meshed", "proxy-inbound");
    pods.assert_answers("meshed", "client", "proxy-outbound");
    drop(away);
    assert!(Path::new("/usr/sbin/iptables").exists());
    scene.remove();
}

/// Programs of the host that are renamed until the value is dropped.
struct Away(Vec<PathBuf>);

const SUFFIX: &str = ".linkerd2-cni-test";

impl Away {
    /// Renames all programs of iptables, after restoring those that a killed test left renamed.
    fn iptables() -> Away {
        drop(Away(Self::find(|name| name.ends_with(SUFFIX))));
        let prefixes = ["iptables", "ip6tables", "xtables"];
        let found = Self::find(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        let away = Away(found.iter().map(|path| beside(path)).collect());
        for path in found {
            fs::rename(&path, beside(&path)).unwrap();
        }
        away
    }

    fn find(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Path::new);
        let mut found: Vec<PathBuf> = dirs
            .iter()
            .filter_map(|dir| fs::canonicalize(dir).ok())
            .flat_map(|dir| fs::read_dir(dir).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted))
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

fn beside(path: &Path) -> PathBuf {
    format!("{}{SUFFIX}", path.display()).into()
}

impl Drop for Away {
    fn drop(&mut self) {
        for path in &self.0 {
            let name = path.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let _ = fs::rename(path, name.unwrap());
        }
    }
}
