//! Captures faults of the node's files: the agent cannot install the plugin, or another program
//! removes it.

use std::fs;
use std::os::unix::fs::symlink;

use nix::mount::MsFlags;

use super::fault::{capture_check, in_container, log_line, metrics, not_ready};
use crate::agent::Agent;
use crate::agent_with_api::{Scene, in_parallel};
use crate::fault_page::{FaultPage, Source};
use crate::filesystems::{bind, fill, in_mount_namespace, mount_over_plugin, mount_small, remount};
use crate::node::{CALICO, LIST, Node};
use crate::{runtime_proof, self_test};

/// Name of the fault's section, part of the reason that `/ready` reports, and function that causes
/// the fault and starts an agent.
type Row = (&'static str, &'static str, fn(&Node) -> Agent);

const NOT_READY: &[Row] = &[
    ("no-network-config", "if the runtime uses another directory", |node| {
        fs::create_dir_all(node.net("cni/net.d")).unwrap();
        node.start_with(&[("DEST_CNI_NET_DIR", "/etc/cni/net.d")])
    }),
    ("network-config-invalid", "network config: no valid", |node| {
        node.write(LIST, &CALICO[..40]);
        node.start()
    }),
    ("network-config-invalid-first", "containerd then loads no network config", |node| {
        node.write("05-cilium.conf", "{");
        node.start()
    }),
    ("network-config-unreadable", "network config: the container runtime may load", |node| {
        symlink("/opt/network/net.conflist", node.net("05-net.conflist")).unwrap();
        node.start()
    }),
    ("wrong-bin-dir", "the plugin is not chained", |node| {
        fs::create_dir_all(node.root().join("usr/lib/cni")).unwrap();
        let bin_dir = ("DEST_CNI_BIN_DIR", "/usr/lib/cni");
        node.start_with(&[("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "true"), bin_dir])
    }),
    ("conf-name-missing", "99-missing.conflist", |node| {
        node.start_with(&[("LINKERD_CNI_CONF_NAME", "99-missing.conflist")])
    }),
    ("disk-full", "kubeconfig: cannot write", |node| {
        mount_small(&node.net(""));
        node.write(LIST, CALICO);
        fill(&node.net(""));
        node.start()
    }),
    ("read-only-directory", "binary: cannot create", |node| {
        remount(&node.bin(""), MsFlags::MS_RDONLY);
        node.start()
    }),
    ("mounted-over", "binary: cannot replace", |node| {
        mount_over_plugin(node);
        node.start()
    }),
    // Start the agent as a user whom the kernel denies access. SELinux and AppArmor have the same
    // effect, but the machine may lack them.
    ("permission-denied", "binary: cannot create", Node::start_as_nobody),
    ("directory-missing", "mounts: ", |node| {
        let on_node = node.root().join("node");
        fs::create_dir(&on_node).unwrap();
        bind(&on_node, &node.bin(""));
        let agent = node.start_ready();
        fs::rename(&on_node, node.root().join("renamed")).unwrap();
        agent
    }),
    ("noexec-bin-dir", "binary: cannot run", |node| {
        remount(&node.bin(""), MsFlags::MS_NOEXEC);
        node.start()
    }),
];

#[test]
fn each_fault_of_the_nodes_files_is_reported_as_documented() {
    in_parallel(NOT_READY, |(name, text, start)| {
        in_mount_namespace(move || {
            let node = Node::with_calico();
            let agent = start(&node);
            not_ready((name, text), &node, &agent).assert_documented();
        });
    });
}

#[test]
fn a_runtime_that_cannot_run_the_plugin_is_reported_as_documented() {
    let Scene { node, agent, .. } = runtime_proof::withdrawn();
    let fault = ("runtime-cannot-run-plugin", "the container runtime cannot run the plugin");
    not_ready(fault, &node, &agent).assert_documented();
}

#[test]
fn skipped_self_test_is_reported_as_documented() {
    let node = Node::with_calico();
    self_test::use_real_plugin(&node);
    let mut agent = self_test::start_without(&node, "sys_admin");
    agent.until_ready();
    let mut page = FaultPage::new("self-test-skipped");
    page.shows(Source::ReadyNote, &agent.ready().1);
    page.shows(Source::AgentLog, &log_line(&agent, "self-test skipped"));
    capture_check(&mut page, &node, &agent, None);
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_self_tests_total{"));
    page.assert_documented();
}

const CONTENTION: &str = "linkerd_cni_agent_contention_active 1";

/// Installs the plugin on a node with a plugin of the primary CNI, because the agent would log a
/// warning without one.
fn installed() -> (Node, Agent) {
    let node = Node::with_calico();
    fs::write(node.bin("portmap"), "").unwrap();
    let agent = node.start_ready();
    (node, agent)
}

#[test]
fn removal_of_the_plugin_entry_by_another_program_is_reported_as_documented() {
    let (node, agent) = installed();
    let mut page = FaultPage::new("plugin-entry-removed");
    let text = "keeps being overwritten";
    let mut ready = String::new();
    node.until_contended("etc/10-calico.conflist", CALICO, || {
        ready = agent.ready().1;
        // When the agent detects the contention, the config still has the entry. Wait until a pass
        // finds it without the entry.
        let status = agent.get("/status").1;
        let is_removed =
            status.contains(r#""contended":[""#) && status.contains(r#""conflist":null"#);
        is_removed && ready.contains(text) && agent.get("/metrics").1.contains(CONTENTION)
    });
    page.shows(Source::Ready, &in_container(&node, &ready));
    capture_check(&mut page, &node, &agent, Some(&ready));
    page.shows(Source::AgentLog, &in_container(&node, &log_line(&agent, text)));
    page.shows(Source::Metrics, CONTENTION);
    page.assert_documented();
}

#[test]
fn plugin_binary_that_another_agent_overwrites_is_reported_as_documented() {
    let (node, mut agent) = installed();
    let mut page = FaultPage::new("two-agents");
    node.until_contended("bin/linkerd-cni", "another plugin", || {
        agent.get("/metrics").1.contains(CONTENTION)
    });
    // The agent reports the contention for 12 s after its last write.
    agent.until_ready();
    capture_check(&mut page, &node, &agent, None);
    let line = log_line(&agent, "keeps being overwritten");
    page.shows(Source::AgentLog, &in_container(&node, &line));
    page.shows(Source::Metrics, CONTENTION);
    page.assert_documented();
}
