//! The agent cannot install the plugin on the node, or another program undoes it. Each test is named after
//! its fault.

use std::fs;
use std::os::unix::fs::symlink;

use nix::mount::{MsFlags, mount};

use super::fault::{checked, in_container, log_line, metrics, not_ready};
use crate::fault_page::{FaultPage, Source, mask_numbers};
use crate::filesystems::{bind, fill, read_only, small, with_mounts};
use crate::node::{CALICO, LIST, Node};
use crate::self_test;
use crate::until::until;

#[test]
fn the_net_dir_is_empty() {
    let node = Node::new();
    fs::create_dir_all(node.root().join("etc/cni/net.d")).unwrap();
    let agent = node.start_with(&[("DEST_CNI_NET_DIR", "/etc/cni/net.d")]);
    not_ready(("no-network-config", "if the runtime uses another directory"), &node, &agent)
        .check();
}

#[test]
fn the_network_config_is_broken() {
    let node = Node::new();
    node.write(LIST, &CALICO[..40]);
    let agent = node.start();
    not_ready(("network-config-invalid", "network config: no valid"), &node, &agent).check();
}

#[test]
fn the_first_network_config_is_a_link_out_of_the_mount() {
    let node = Node::with_calico();
    symlink("/opt/network/net.conflist", node.net("05-net.conflist")).unwrap();
    let agent = node.start();
    not_ready(
        ("network-config-unreadable", "network config: the container runtime may load"),
        &node,
        &agent,
    )
    .check();
}

#[test]
fn the_bin_dir_has_none_of_the_networks_plugins() {
    let node = Node::with_calico();
    fs::create_dir_all(node.root().join("usr/lib/cni")).unwrap();
    let bin_dir = ("DEST_CNI_BIN_DIR", "/usr/lib/cni");
    let agent = node.start_with(&[("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "true"), bin_dir]);
    not_ready(("wrong-bin-dir", "the plugin is not chained"), &node, &agent).check();
}

#[test]
fn the_conflist_that_is_set_does_not_exist() {
    let node = Node::with_calico();
    let agent = node.start_with(&[("LINKERD_CNI_CONF_NAME", "99-missing.conflist")]);
    not_ready(("conf-name-missing", "99-missing.conflist"), &node, &agent).check();
}

#[test]
fn the_disk_is_full() {
    with_mounts(|node| {
        small(&node.root().join("etc"));
        node.write(LIST, CALICO);
        fill(&node.root().join("etc"));
        let agent = node.start();
        not_ready(("disk-full", "kubeconfig: cannot write"), node, &agent).check();
    });
}

#[test]
fn the_directory_is_read_only() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        read_only(&node.root().join("bin"));
        let agent = node.start();
        not_ready(("read-only-directory", "binary: cannot create"), node, &agent).check();
    });
}

#[test]
fn something_is_mounted_over_the_plugin() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let (program, other) = (node.bin("linkerd-cni"), node.root().join("other"));
        for path in [&program, &other] {
            fs::write(path, "not the plugin").unwrap();
        }
        bind(&other, &program);
        let agent = node.start();
        not_ready(("mounted-over", "binary: cannot replace"), node, &agent).check();
    });
}

/// Another user than root is refused as by SELinux or AppArmor, which the test's machine may lack.
#[test]
fn the_node_denies_writing() {
    let node = Node::with_calico();
    let before = node.tree();
    let agent = node.start_as_nobody();
    not_ready(("permission-denied", "binary: cannot create"), &node, &agent).check();
    assert_eq!(node.tree(), before);
}

#[test]
fn the_directory_was_created_again() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        let (on_node, bin) = (node.root().join("node"), node.root().join("bin"));
        fs::create_dir(&on_node).unwrap();
        bind(&on_node, &bin);
        let agent = node.start_ready();
        fs::rename(&on_node, node.root().join("renamed")).unwrap();
        not_ready(("directory-missing", "mounts: "), node, &agent).check();
    });
}

#[test]
fn the_bin_dir_is_noexec() {
    let in_mounts: fn(&Node) = |_| {
        let node = self_test::node(&fs::read(self_test::PLUGIN).unwrap(), "1.0.0");
        let bin = node.root().join("bin");
        bind(&bin, &bin);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOEXEC;
        let none = None::<&str>;
        mount(none, &bin, none, flags, none).unwrap();
        let agent = self_test::start(&node, self_test::ENTRY);
        let mut page = not_ready(("noexec-bin-dir", "self-test: ADD failed"), &node, &agent);
        let failed = metrics(&agent, "linkerd_cni_agent_self_tests_total{");
        // The agent tests again, at growing intervals.
        page.shows(Source::Metrics, &mask_numbers(&failed, "} ", "\n"));
        page.check();
    };
    with_mounts(in_mounts);
}

#[test]
fn the_self_test_is_skipped() {
    let node = self_test::node(&fs::read(self_test::PLUGIN).unwrap(), "1.0.0");
    let vars = [("LINKERD_CNI_SELF_TEST", "true"), ("CNI_NETWORK_CONFIG", self_test::ENTRY)];
    let mut agent = node.start_under(&["setpriv", "--bounding-set=-sys_admin"], &[], &vars);
    agent.until_ready();
    let mut page = FaultPage::new("self-test-skipped");
    page.shows(Source::ReadyNote, &agent.ready().1);
    page.shows(Source::AgentLog, &log_line(&agent, "self-test skipped"));
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_self_tests_total{"));
    page.check();
}

/// Writes the file as it was before each write of the agent, until `is_seen` returns true.
fn overwrite(node: &Node, name: &str, bytes: &[u8], mut is_seen: impl FnMut() -> bool) {
    let path = node.root().join(name);
    let good = fs::read(&path).unwrap();
    until("the contention is seen", || {
        if fs::read(&path).is_ok_and(|found| found == good) {
            node.replace(&path, bytes);
        }
        is_seen()
    });
}

const CONTENTION: &str = "linkerd_cni_agent_contention_active 1";

#[test]
fn another_program_removes_the_plugin_entry() {
    let node = Node::with_calico();
    // Otherwise the agent also warns of a bin dir without the network's plugins.
    fs::write(node.bin("portmap"), "").unwrap();
    let agent = node.start_ready();
    let mut page = FaultPage::new("plugin-entry-removed");
    let text = "keeps being overwritten";
    let mut ready = String::new();
    overwrite(&node, "etc/10-calico.conflist", CALICO.as_bytes(), || {
        ready = agent.ready().1;
        ready.contains(text) && agent.get("/metrics").1.contains(CONTENTION)
    });
    page.shows(Source::Ready, &in_container(&node, &ready));
    checked(&mut page, &node, &agent, Some(&ready));
    page.shows(Source::AgentLog, &in_container(&node, &log_line(&agent, text)));
    page.shows(Source::Metrics, CONTENTION);
    page.check();
}

#[test]
fn another_agent_overwrites_the_plugin() {
    let node = Node::with_calico();
    // Otherwise the agent also warns of a bin dir without the network's plugins.
    fs::write(node.bin("portmap"), "").unwrap();
    let mut agent = node.start_ready();
    let mut page = FaultPage::new("two-agents");
    overwrite(&node, "bin/linkerd-cni", b"another plugin", || {
        agent.get("/metrics").1.contains(CONTENTION)
    });
    // The agent reports the contention for 12 s after its last write.
    agent.until_ready();
    checked(&mut page, &node, &agent, None);
    let line = log_line(&agent, "keeps being overwritten");
    page.shows(Source::AgentLog, &in_container(&node, &line));
    page.shows(Source::Metrics, CONTENTION);
    page.check();
}
