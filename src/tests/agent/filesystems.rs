//! Tests real faults of the node's file systems: full, read-only, or with a file mounted over the
//! plugin binary. Also tests network configs with a different owner, and the agent's capabilities.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::helm::Render;
use crate::node::{CALICO, CAPABILITIES, CONF, LIST, Node, PLUGIN};
use crate::until::until;

pub use crate::mounts::{bind, in_mount_namespace};

/// Runs `test` with a node in a new mount namespace. Its mounts end with the test.
pub fn with_mounts(test: fn(&Node)) {
    in_mount_namespace(move || test(&Node::uninstalling_with_calico()));
}

/// Mounts a file system of 64 KiB.
pub fn mount_small(dir: &Path) {
    let flags = MsFlags::empty();
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some("size=64k,mode=755")).unwrap();
}

/// Fills a file system that [`mount_small`] mounted.
pub fn fill(dir: &Path) {
    let full = fs::write(dir.join("filler"), vec![0; 64 << 10]);
    assert!(full.is_err(), "the file system is larger than expected");
}

/// Mounts the directory over itself with a flag, such as `MS_RDONLY`.
pub fn remount(dir: &Path, flag: MsFlags) {
    bind(dir, dir);
    let none = None::<&str>;
    mount(none, dir, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flag, none).unwrap();
}

/// Mounts another file over the plugin binary. Returns the path of the binary.
pub fn mount_over_plugin(node: &Node) -> PathBuf {
    let (program, other) = (node.bin("linkerd-cni"), node.root().join("other"));
    for path in [&program, &other] {
        fs::write(path, "not the plugin").unwrap();
    }
    bind(&other, &program);
    program
}

fn unmount(path: &Path) {
    umount2(path, MntFlags::MNT_DETACH).unwrap();
}

/// Waits until the agent is not ready, for a reason that contains all `parts`.
fn until_not_ready(agent: &Agent, parts: &[&str]) {
    until(&parts.join(" and "), || {
        let (status, why) = agent.ready();
        status == 500 && parts.iter().all(|part| why.contains(part))
    });
}

#[test]
fn full_disk_delays_the_install_and_damages_no_file() {
    with_mounts(|node| {
        mount_small(&node.net(""));
        node.write(LIST, CALICO);
        node.write("20-net.conf", CONF);
        let before = node.tree();
        fill(&node.net(""));
        let mut agent = node.start();
        until_not_ready(&agent, &["kubeconfig.json: No space left", "free space"]);
        assert_eq!(node.text(LIST), CALICO);
        fs::remove_file(node.net("filler")).unwrap();
        agent.until_ready();
        // The primary CNI changes its network config while there is no space to chain the plugin
        // again.
        fill(&node.net(""));
        let changed = CALICO.replace("1e3", "2e3");
        fs::write(node.net(LIST), &changed).unwrap();
        until("the reason", || {
            let log = agent.log();
            log.contains("10-calico.conflist: No space left") && agent.ready().0 == 500
        });
        assert_eq!(node.text(LIST), changed);
        assert_eq!(node.types("20-net.conflist"), ["bridge", "linkerd-cni"]);
        fs::remove_file(node.net("filler")).unwrap();
        agent.until_ready();
        node.write(LIST, CALICO);
        until("the entry", || node.chained(LIST));
        node.assert_restored(&mut agent, &before);
    });
}

/// Parts of the reason that `/ready` reports, and a function that causes the fault with a mount. It
/// returns the path of the mount.
type MountFault = (&'static [&'static str], fn(&Node) -> PathBuf);

const READ_ONLY: &str = "Read-only file system";
const FAULTS: &[MountFault] = &[
    (&["kubeconfig: cannot create", READ_ONLY, "destCNIBinDir"], |node| {
        remount(&node.net(""), MsFlags::MS_RDONLY);
        node.net("")
    }),
    (&["binary: cannot create", READ_ONLY, "destCNIBinDir"], |node| {
        remount(&node.bin(""), MsFlags::MS_RDONLY);
        node.bin("")
    }),
    (&["binary: cannot write", "bin/linkerd-cni: No space left"], |node| {
        mount_small(&node.bin(""));
        node.bin("")
    }),
    (&["binary: cannot replace", "unmount what the node has mounted"], mount_over_plugin),
];

#[test]
fn unwritable_file_is_reported_once_with_a_remedy_and_installed_later() {
    for (parts, cause) in FAULTS {
        in_mount_namespace(move || {
            let node = Node::uninstalling_with_calico();
            let before = node.tree();
            let mounted = cause(&node);
            let mut agent = node.start();
            until_not_ready(&agent, parts);
            assert_eq!(node.text(LIST), CALICO);
            // `/ready` shows the result of a pass before the log does.
            until("the problem is logged", || agent.log().contains(parts[0]));
            assert_eq!(agent.log().matches(parts[0]).count(), 1, "{}", agent.log());
            unmount(&mounted);
            agent.until_ready();
            assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN);
            node.assert_restored(&mut agent, &before);
        });
    }
}

#[test]
fn uninstall_on_a_read_only_disk_keeps_the_chained_plugin() {
    with_mounts(|node| {
        let before = node.tree();
        let mut agent = node.start_ready();
        remount(&node.net(""), MsFlags::MS_RDONLY);
        assert_eq!(agent.stop(), Some(1));
        let log = agent.log();
        assert!(log.contains("a network config still names linkerd-cni"), "{log}");
        assert!(node.is_installed(), "{log}");
        unmount(&node.net(""));
        let mut agent = node.start_ready();
        node.assert_restored(&mut agent, &before);
    });
}

#[test]
fn uninstall_reports_once_that_it_cannot_remove_a_socket() {
    with_mounts(|node| {
        drop(UnixDatagram::bind(node.net(".linkerd-cni.sock")).unwrap());
        remount(&node.net(""), MsFlags::MS_RDONLY);
        let log = node.uninstall_ends_with(1);
        assert_eq!(log.matches(".linkerd-cni.sock").count(), 1, "{log}");
    });
}

/// Modes and owners of a network config: mode, UID, GID.
const OWNERS: [[u32; 3]; 3] = [[0o664, 0, 997], [0o660, 1000, 1000], [0o600, 1000, 0]];

fn owned_by([mode, uid, gid]: [u32; 3]) -> Node {
    let node = Node::uninstalling_with_calico();
    chown(node.net(LIST), Some(uid), Some(gid)).unwrap();
    fs::set_permissions(node.net(LIST), PermissionsExt::from_mode(mode)).unwrap();
    node
}

fn assert_owner(node: &Node, expected: [u32; 3]) {
    let metadata = fs::metadata(node.net(LIST)).unwrap();
    assert_eq!([metadata.mode() & 0o7777, metadata.uid(), metadata.gid()], expected);
}

/// Starts an agent without the capability CHOWN, and waits until it is ready.
fn start_without_chown(node: &Node) -> Agent {
    let without = CAPABILITIES.map(|word| word.replace("+chown,", ""));
    let mut agent = node.start_under(&without.each_ref().map(|word| &**word), &[], &[]);
    agent.until_ready();
    agent
}

#[test]
fn agents_in_these_tests_have_the_capabilities_that_the_chart_grants() {
    let objects = Render::new().values(&json!({})).objects();
    let granted = &objects.container("install-cni")["securityContext"]["capabilities"];
    assert_eq!(granted["drop"], json!(["ALL"]));
    let granted = granted["add"].as_array().unwrap().iter();
    let granted: Vec<_> = granted.filter_map(Value::as_str).map(str::to_lowercase).collect();
    let bounding = format!("--bounding-set=-all,+{}", granted.join(",+"));
    assert!(CAPABILITIES.contains(&&*bounding), "the chart grants {granted:?}");
}

#[test]
fn chained_config_keeps_its_owner_if_the_agent_may_chown() {
    for [mode, uid, gid] in OWNERS {
        for may_chown in [true, false] {
            let node = owned_by([mode, uid, gid]);
            let mut agent = if may_chown { node.start_ready() } else { start_without_chown(&node) };
            let owner = if may_chown { [mode, uid, gid] } else { [mode, 0, 0] };
            assert!(node.chained(LIST), "{}", agent.log());
            assert_owner(&node, owner);
            for text in [
                &format!("gets the owner 0:0 instead of {uid}:{gid}"),
                "add the capability CHOWN to the container",
            ] {
                assert_eq!(agent.log().contains(text), !may_chown, "{}", agent.log());
            }
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
            assert_eq!(node.text(LIST), CALICO);
            assert_owner(&node, owner);
        }
    }
}
