//! A plugin binary that cannot be run: no pod would start if it were chained. Needs root.

use nix::mount::{MsFlags, mount};
use testkit::write_program;

use crate::filesystems::{in_mount_namespace, remount};
use crate::modes::{MODES, configs_with};
use crate::node::{CONF, Node, PLUGIN};
use crate::until::until;

type Change = fn(&Node);

struct Fault {
    name: &'static str,
    /// Parts of what `/ready` says.
    says: &'static [&'static str],
    begin: Change,
    end: Change,
}

const FAULTS: [Fault; 3] = [
    Fault {
        name: "noexec",
        says: &["Permission denied", "bin is mounted noexec; mount it without noexec"],
        begin: |node| remount(&node.bin(""), MsFlags::MS_NOEXEC),
        end: |node| {
            let (flags, none) = (MsFlags::MS_BIND | MsFlags::MS_REMOUNT, None::<&str>);
            mount(none, &node.bin(""), none, flags, none).unwrap();
        },
    },
    Fault {
        name: "no program",
        says: &["Exec format error", "destCNIBinDir"],
        begin: |node| use_plugin(node, b"\x7fELF no program"),
        end: |node| use_plugin(node, PLUGIN),
    },
    Fault {
        name: "a program that fails",
        says: &["VERSION failed: ", "exit status: 3; no library"],
        begin: |node| use_plugin(node, b"#!/bin/sh\necho no library >&2; exit 3\n"),
        end: |node| use_plugin(node, PLUGIN),
    },
];

fn use_plugin(node: &Node, plugin: &[u8]) {
    let beside = node.root().join("new");
    write_program(&beside, plugin);
    std::fs::rename(beside, node.root().join("image/linkerd-cni")).unwrap();
}

#[test]
fn a_plugin_that_cannot_be_run_is_chained_in_no_mode() {
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
                    let says = [&["binary: cannot run", "does not chain"], fault.says].concat();
                    status == 500 && says.iter().all(|part| why.contains(part))
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
fn a_plugin_that_became_unrunnable_is_not_chained_again() {
    in_mount_namespace(|| {
        let node = Node::with_calico();
        node.install();
        remount(&node.bin(""), MsFlags::MS_NOEXEC);
        let agent = node.start();
        until("the reason", || agent.ready().1.contains("is mounted noexec"));
        assert!(node.chained(crate::node::LIST));
        node.write(crate::node::LIST, crate::node::CALICO);
        let passes = || agent.metric("linkerd_cni_agent_reconcile_total");
        let before = passes();
        until("two passes", || passes() >= before + 2.0);
        assert!(!node.chained(crate::node::LIST), "{}", agent.log());
    });
}
