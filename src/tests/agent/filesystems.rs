//! Faults of the node's file systems, for real: full, read-only, forbidden, mounted over.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::agent::Agent;
use crate::node::{CALICO, CONF, LIST, Node, PLUGIN};
use crate::until::until;

pub use crate::mounts::{bind, in_mount_namespace};

/// Runs `test` with a node in a mount namespace, so that no mount outlives it.
pub fn with_mounts(test: fn(&Node)) {
    in_mount_namespace(move || test(&Node::uninstalling()));
}

pub fn small(dir: &Path) {
    let flags = MsFlags::empty();
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some("size=64k,mode=755")).unwrap();
}

/// Fills what is left of a small file system.
pub fn fill(dir: &Path) {
    let full = fs::write(dir.join("filler"), vec![0; 64 << 10]);
    assert!(full.is_err(), "it was not as small as it should be");
}

pub fn read_only(dir: &Path) {
    bind(dir, dir);
    let none = None::<&str>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, dir, none, flags, none).unwrap();
}

fn unmount(path: &Path) {
    umount2(path, MntFlags::MNT_DETACH).unwrap();
}

/// Not ready, for a reason that has all of `parts` in it, which is logged once.
fn refuses(agent: &Agent, parts: &[&str]) {
    until(&parts.join(" and "), || {
        let (status, why) = agent.ready();
        status == 500 && parts.iter().all(|part| why.contains(part))
    });
}

#[test]
fn a_full_disk_keeps_existing_files_and_the_agent_installs_once_there_is_space() {
    with_mounts(|node| {
        small(&node.root().join("etc"));
        node.write(LIST, CALICO);
        node.write("20-net.conf", CONF);
        let before = node.tree();
        fill(&node.root().join("etc"));
        let mut agent = node.start();
        refuses(&agent, &["kubeconfig.json: No space left", "free space"]);
        assert_eq!(node.text(LIST), CALICO);
        fs::remove_file(node.net("filler")).unwrap();
        agent.until_ready();
        // A network that its owner changes while there is no room to put us in again.
        fill(&node.root().join("etc"));
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
        assert!(node.chained(LIST));
        node.write(LIST, CALICO);
        until("the entry", || node.chained(LIST));
        node.assert_restored(&mut agent, &before);
    });
}

#[test]
fn a_full_bin_dir_leaves_the_network_configs_unchanged() {
    with_mounts(|node| {
        small(&node.root().join("bin"));
        node.write(LIST, CALICO);
        let mut agent = node.start();
        let why = ["binary: cannot write", "bin/linkerd-cni: No space left"];
        refuses(&agent, &why);
        assert_eq!(node.text(LIST), CALICO);
        assert_eq!(fs::read_dir(node.root().join("bin")).unwrap().count(), 0);
        unmount(&node.root().join("bin"));
        agent.until_ready();
        assert!(node.chained(LIST));
    });
}

#[test]
fn directories_that_cannot_be_written_are_named_with_the_remedy() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let before = node.tree();
        for (dir, what) in [("etc", "kubeconfig: cannot create"), ("bin", "binary: cannot create")]
        {
            let path = node.root().join(dir);
            read_only(&path);
            let mut agent = node.start();
            refuses(&agent, &[what, "Read-only file system", "destCNIBinDir"]);
            assert_eq!(node.text(LIST), CALICO);
            // `/ready` reports a pass before the log does.
            until("the problem is logged", || agent.log().contains(what));
            let said = agent.log().matches(what).count();
            assert_eq!(said, 1, "{}", agent.log());
            unmount(&path);
            agent.until_ready();
            node.assert_restored(&mut agent, &before);
        }
    });
}

#[test]
fn uninstall_on_a_read_only_disk_leaves_the_plugin_that_a_conflist_names() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let before = node.tree();
        let mut agent = node.start_ready();
        read_only(&node.root().join("etc"));
        assert_eq!(agent.stop(), Some(1));
        let log = agent.log();
        assert!(log.contains("a network config still names linkerd-cni"), "{log}");
        assert!(node.chained(LIST));
        assert!(node.bin("linkerd-cni").exists() && node.net("kubeconfig.json").exists());
        unmount(&node.root().join("etc"));
        let mut agent = node.start_ready();
        node.assert_restored(&mut agent, &before);
    });
}

#[test]
fn an_uninstall_names_a_dead_agents_socket_that_it_cannot_remove_once() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let socket = node.net(".linkerd-cni.sock");
        drop(UnixDatagram::bind(&socket).unwrap());
        read_only(&node.root().join("etc"));
        let mut uninstall = node.start_args(&["uninstall"], &[]);
        assert_eq!(uninstall.wait(), Some(1), "{}", uninstall.log());
        let log = uninstall.log();
        assert_eq!(log.matches(".linkerd-cni.sock").count(), 1, "{log}");
    });
}

#[test]
fn a_mount_over_the_plugin_binary_is_reported_and_the_agent_recovers() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let (program, other) = (node.bin("linkerd-cni"), node.root().join("other"));
        for path in [&program, &other] {
            fs::write(path, "not the plugin").unwrap();
        }
        bind(&other, &program);
        let mut agent = node.start();
        refuses(&agent, &["binary: cannot replace", "unmount what the node has mounted"]);
        assert_eq!(node.text(LIST), CALICO);
        unmount(&program);
        agent.until_ready();
        assert_eq!(fs::read(&program).unwrap(), PLUGIN);
    });
}
