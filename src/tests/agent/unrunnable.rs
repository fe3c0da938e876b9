//! Tests a plugin binary that cannot be executed. If the agent chained it, no pod could start.
//! Needs root.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use nix::mount::{MsFlags, mount};
use testkit::{table, write_program};

use crate::agent::Agent;
use crate::filesystems::{in_mount_namespace, remount};
use crate::modes::{MODES, configs_with};
use crate::node::{CALICO, CONF, LIST, Node, PLUGIN};
use crate::until::until;

type Change = fn(&Node);

struct Fault {
    name: &'static str,
    /// Parts of the reason that `/ready` reports.
    reason: &'static [&'static str],
    begin: Change,
    end: Change,
}

const FAULTS: [Fault; 3] = [
    Fault {
        name: "noexec",
        reason: &["Permission denied", "bin is mounted noexec; mount it without noexec"],
        begin: |node| remount(&node.bin(""), MsFlags::MS_NOEXEC),
        end: |node| {
            let (flags, none) = (MsFlags::MS_BIND | MsFlags::MS_REMOUNT, None::<&str>);
            mount(none, &node.bin(""), none, flags, none).unwrap();
        },
    },
    Fault {
        name: "no program",
        reason: &["Exec format error", "destCNIBinDir"],
        begin: |node| use_plugin(node, b"\x7fELF no program"),
        end: |node| use_plugin(node, PLUGIN),
    },
    Fault {
        name: "a program that fails",
        reason: &["VERSION failed: ", "exit status: 3; no library"],
        begin: |node| use_plugin(node, b"#!/bin/sh\necho no library >&2; exit 3\n"),
        end: |node| use_plugin(node, PLUGIN),
    },
];

fn use_plugin(node: &Node, plugin: &[u8]) {
    let temporary = node.root().join("new");
    write_program(&temporary, plugin);
    fs::rename(temporary, node.root().join("image/linkerd-cni")).unwrap();
}

fn until_two_passes(agent: &Agent) {
    let passes = || agent.metric("linkerd_cni_agent_reconcile_total");
    let before = passes();
    until("two passes", || passes() >= before + 2.0);
}

#[test]
fn plugin_that_cannot_be_run_is_not_chained_in_any_mode() {
    for fault in FAULTS {
        for (mode, chained) in MODES {
            in_mount_namespace(move || {
                let node = Node::uninstalling_with_calico();
                node.write("20-net.conf", CONF);
                let before = node.tree();
                (fault.begin)(&node);
                let mut agent = node.start_with(mode);
                until(fault.name, || {
                    let (status, why) = agent.ready();
                    let parts = [&["binary: cannot run", "does not chain"], fault.reason].concat();
                    status == 500 && parts.iter().all(|part| why.contains(part))
                });
                assert_eq!(configs_with(&node, "linkerd-cni"), [""; 0], "{}", fault.name);
                (fault.end)(&node);
                agent.until_ready();
                until("the plugin is chained", || configs_with(&node, "linkerd-cni") == chained);
                node.assert_restored(&mut agent, &before);
            });
        }
    }
}

#[test]
fn plugin_that_can_no_longer_be_run_is_not_chained_again() {
    in_mount_namespace(|| {
        let node = Node::with_calico();
        node.install();
        remount(&node.bin(""), MsFlags::MS_NOEXEC);
        let agent = node.start();
        let is_reported =
            |text: &str| agent.ready().1.contains(text) && agent.ready().1.contains("noexec");
        until("the reason", || is_reported("the plugin is already chained, so new pods may fail"));
        assert!(node.chained(LIST));
        node.write(LIST, CALICO);
        until("the changed reason", || is_reported("the agent does not chain the plugin"));
        until_two_passes(&agent);
        assert!(!node.chained(LIST), "{}", agent.log());
    });
}

#[test]
fn upgrade_to_a_plugin_that_cannot_be_run_keeps_the_earlier_plugin() {
    for (name, (plugin, problem)) in table::named([
        ("no program", (&b"\x7fELF no program"[..], "Exec format error")),
        ("a program that fails", (&b"#!/bin/sh\nexit 3\n"[..], "linkerd-cni: exit status: 3")),
    ]) {
        let node = Node::uninstalling_with_calico();
        let before = node.tree();
        node.install();
        use_plugin(&node, plugin);
        let mut agent = node.start();
        until(&name, || {
            let (status, why) = agent.ready();
            let rejected = "binary: cannot run the new ";
            let kept = "the earlier plugin stays, and is chained";
            status == 500 && [rejected, problem, kept].iter().all(|part| why.contains(part))
        });
        until_two_passes(&agent);
        assert!(node.is_installed() && node.has_own_binary(), "{name}");
        assert_eq!(agent.log().matches("cannot run the new").count(), 1, "{}", agent.log());
        until("the temporary file is removed", || fs::read_dir(node.bin("")).unwrap().count() == 1);
        let next = [PLUGIN, b"#"].concat();
        use_plugin(&node, &next);
        agent.until_ready();
        assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), next, "{name}");
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn plugin_that_only_the_agent_may_not_run_is_chained_with_a_warning() {
    let mut node = Node::with_calico();
    node.vars.push(("LINKERD_CNI_RESYNC_SECONDS", "1".into()));
    // With this mode, root may execute the file but the owner may not. The agent owns its copy.
    let mode = fs::Permissions::from_mode(0o654);
    fs::set_permissions(node.root().join("image/linkerd-cni"), mode).unwrap();
    for path in [node.bin(""), node.net(""), node.net(LIST)] {
        chown(path, Some(65534), Some(65534)).unwrap();
    }
    let mut agent = node.start_as_nobody();
    agent.until_ready();
    assert!(node.is_installed() && node.has_own_binary(), "{}", agent.log());
    until_two_passes(&agent);
    let warning = "binary: cannot check ";
    assert_eq!(agent.log().matches(warning).count(), 1, "{}", agent.log());
    let status = agent.get("/status").1;
    assert!(status.contains("the agent may not run it: Permission denied"), "{status}");
}
