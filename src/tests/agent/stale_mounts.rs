//! Tests directories of the node that are removed, renamed or replaced while they are mounted in
//! the agent's container.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use crate::filesystems::{bind, in_mount_namespace};
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

const DIRS: [&str; 2] = ["etc", "bin"];

/// A node whose directories are mounted in the agent's container, as the kubelet does.
struct Mounted(Node);

impl Mounted {
    fn new() -> Mounted {
        let mounted = Mounted(Node::uninstalling());
        for dir in DIRS {
            fs::create_dir_all(mounted.on_node(dir)).unwrap();
            mounted.mount(dir);
        }
        fs::write(mounted.on_node("etc").join(LIST), CALICO).unwrap();
        mounted
    }

    /// Returns the path of a directory on the node, not in the container.
    fn on_node(&self, dir: &str) -> PathBuf {
        self.0.root().join("node").join(dir)
    }

    fn mount(&self, dir: &str) {
        bind(&self.on_node(dir), &self.0.root().join(dir));
    }

    /// Mounts the directory again, as the kubelet does for a new container.
    fn mount_again(&self, dir: &str) {
        umount2(&self.0.root().join(dir), MntFlags::MNT_DETACH).unwrap();
        self.mount(dir);
    }
}

/// Removes a directory. Retries while the agent writes to it.
fn remove(dir: &Path) {
    until("the directory is removed", || fs::remove_dir_all(dir).is_ok() || !dir.exists());
}

fn rename(dir: &Path) {
    fs::rename(dir, dir.with_extension("old")).unwrap();
}

fn names(dir: &Path) -> BTreeSet<OsString> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn live_fails_after_a_mounted_directory_is_recreated_until_the_container_restarts() {
    in_mount_namespace(|| {
        let cases = |dir| [(dir, remove as fn(&Path)), (dir, rename as fn(&Path))];
        for (dir, make_stale) in DIRS.into_iter().flat_map(cases) {
            let mounted = Mounted::new();
            let node = &mounted.0;
            let mut agent = node.start_ready();
            assert_eq!(agent.get("/live").0, 200);
            make_stale(&mounted.on_node(dir));
            fs::create_dir(mounted.on_node(dir)).unwrap();
            if dir == "etc" {
                fs::write(mounted.on_node(dir).join(LIST), CALICO).unwrap();
            }
            let path = node.root().join(dir).display().to_string();
            let problem = format!("{path} was removed or renamed on the node");
            until(&problem, || agent.get("/live").0 == 500 && agent.ready().0 == 500);
            let (live, ready) = (agent.get("/live").1, agent.ready().1);
            assert!(live.contains(&problem) && live.contains("delete this pod"), "{live}");
            assert!(ready.contains(&format!("mounts: {problem}")), "{ready}");
            let files = names(&mounted.on_node(dir));

            // The kubelet restarts the container.
            agent.kill();
            mounted.mount_again(dir);
            let mut agent = node.start_ready();
            assert_eq!(agent.get("/live").0, 200);
            assert_ne!(names(&mounted.on_node(dir)), files);
            assert!(node.chained(LIST));
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
            assert_eq!(node.text(LIST), CALICO);
        }
    });
}

#[test]
fn uninstall_with_a_stale_net_dir_leaves_everything_in_place_and_fails() {
    in_mount_namespace(|| {
        let mounted = Mounted::new();
        let node = &mounted.0;
        let mut agent = node.start_ready();
        let chained = node.text(LIST);
        remove(&mounted.on_node("etc"));
        fs::create_dir(mounted.on_node("etc")).unwrap();
        fs::write(mounted.on_node("etc").join(LIST), &chained).unwrap();
        until("the stale mount", || agent.get("/live").0 == 500);
        assert_eq!(agent.stop(), Some(1), "{}", agent.log());
        // The node's network config still names the plugin, so the binary must not be removed.
        assert!(node.bin("linkerd-cni").exists());
        assert_eq!(fs::read_to_string(mounted.on_node("etc").join(LIST)).unwrap(), chained);
        assert_eq!(names(&mounted.on_node("etc")), BTreeSet::from([LIST.into()]));
        // The subcommand in the same container does not see the node's directory either.
        node.uninstall_ends_with(1);
        assert!(node.bin("linkerd-cni").exists());
        mounted.mount_again("etc");
        node.uninstall();
        assert_eq!(node.text(LIST), CALICO);
        assert!(!node.bin("linkerd-cni").exists());
    });
}

#[test]
fn uninstall_with_a_stale_bin_dir_unchains_the_plugin_and_fails() {
    in_mount_namespace(|| {
        let mounted = Mounted::new();
        let node = &mounted.0;
        let mut agent = node.start_ready();
        rename(&mounted.on_node("bin"));
        fs::create_dir(mounted.on_node("bin")).unwrap();
        until("the stale mount", || agent.get("/live").0 == 500);
        assert_eq!(agent.stop(), Some(1), "{}", agent.log());
        assert_eq!(node.text(LIST), CALICO);
        assert_eq!(names(&mounted.on_node("etc")), BTreeSet::from([LIST.into()]));
        assert!(agent.log().contains("was removed or renamed on the node"), "{}", agent.log());
    });
}
