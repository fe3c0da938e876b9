//! The agent cannot install the plugin on the node, or another program undoes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::mount::{MsFlags, mount};

use super::fault::{metrics, not_ready};
use crate::agent::Agent;
use crate::fault_page::{FaultPage, Source};
use crate::filesystems::{bind, fill, read_only, small, with_mounts};
use crate::node::{CALICO, Node};
use crate::proof;

const LIST: &str = "10-calico.conflist";

fn node() -> Node {
    let node = Node::new();
    node.write(LIST, CALICO);
    node
}

#[test]
fn the_net_dir_is_empty() {
    let node = Node::new();
    fs::create_dir_all(node.root().join("etc/cni/net.d")).unwrap();
    let agent = node.start_with(&[("DEST_CNI_NET_DIR", "/etc/cni/net.d")]);
    let mut page = FaultPage::new("no-network-config");
    not_ready(&mut page, &node, &agent, "no network config exists yet");
    page.check();
}

#[test]
fn the_network_config_is_broken() {
    let node = Node::new();
    node.write(LIST, &CALICO[..40]);
    let agent = node.start();
    let mut page = FaultPage::new("network-config-invalid");
    not_ready(&mut page, &node, &agent, "no valid network config");
    page.check();
}

#[test]
fn the_bin_dir_has_none_of_the_networks_plugins() {
    let node = node();
    fs::create_dir_all(node.root().join("usr/lib/cni")).unwrap();
    let bin_dir = ("DEST_CNI_BIN_DIR", "/usr/lib/cni");
    let agent = node.start_with(&[("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "true"), bin_dir]);
    let mut page = FaultPage::new("wrong-bin-dir");
    not_ready(&mut page, &node, &agent, "not chained");
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_bin_dir_without_plugins"));
    page.check();
}

#[test]
fn the_conflist_that_is_set_does_not_exist() {
    let node = node();
    let agent = node.start_with(&[("LINKERD_CNI_CONF_NAME", "99-missing.conflist")]);
    let mut page = FaultPage::new("conf-name-missing");
    not_ready(&mut page, &node, &agent, "99-missing.conflist");
    page.check();
}

#[test]
fn the_disk_is_full() {
    with_mounts(|node| {
        small(&node.root().join("etc"));
        node.write(LIST, CALICO);
        fill(&node.root().join("etc"));
        let agent = node.start();
        let mut page = FaultPage::new("disk-full");
        not_ready(&mut page, node, &agent, "No space left");
        page.check();
    });
}

#[test]
fn the_directory_is_read_only() {
    with_mounts(|node| {
        node.write(LIST, CALICO);
        read_only(&node.root().join("bin"));
        let agent = node.start();
        let mut page = FaultPage::new("read-only-directory");
        not_ready(&mut page, node, &agent, "Read-only file system");
        page.check();
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
        let mut page = FaultPage::new("mounted-over");
        not_ready(&mut page, node, &agent, "cannot replace");
        page.check();
    });
}

/// Another user than root is refused as by SELinux or AppArmor, which the test's machine may lack.
#[test]
fn the_node_denies_writing() {
    let node = node();
    let open = PermissionsExt::from_mode(0o755);
    fs::set_permissions(node.root(), open).unwrap();
    for turn in fs::read_dir(node.sa()).unwrap() {
        let turn = turn.unwrap().path();
        if fs::symlink_metadata(&turn).unwrap().is_dir() {
            fs::set_permissions(turn, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let agent = node.start_under(&nobody, &[], &[]);
    let mut page = FaultPage::new("permission-denied");
    not_ready(&mut page, &node, &agent, "Permission denied");
    page.check();
}

#[test]
fn the_directory_was_created_again() {
    let node = node();
    node.remove_tree("bin");
    let agent = node.start();
    let mut page = FaultPage::new("directory-missing");
    not_ready(&mut page, &node, &agent, "binary: ");
    page.check();
}

#[test]
fn the_bin_dir_is_noexec() {
    let in_mounts: fn(&Node) = |_| {
        let node = proof::node(&fs::read(proof::PLUGIN).unwrap(), "1.0.0");
        let bin = node.root().join("bin");
        bind(&bin, &bin);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOEXEC;
        let none = None::<&str>;
        mount(none, &bin, none, flags, none).unwrap();
        let agent = proof::start(&node, proof::ENTRY);
        let mut page = FaultPage::new("noexec-bin-dir");
        not_ready(&mut page, &node, &agent, "self-test: ADD failed");
        page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_self_tests_total{"));
        page.check();
    };
    with_mounts(in_mounts);
}

#[test]
fn the_self_test_is_skipped() {
    let node = proof::node(&fs::read(proof::PLUGIN).unwrap(), "1.0.0");
    let vars = [("LINKERD_CNI_SELF_TEST", "true"), ("CNI_NETWORK_CONFIG", proof::ENTRY)];
    let mut agent = node.start_under(&["setpriv", "--bounding-set=-sys_admin"], &[], &vars);
    agent.until_ready();
    let mut page = FaultPage::new("self-test-skipped");
    page.shows(Source::ReadyNote, &agent.ready().1);
    page.shows(Source::AgentLog, &super::fault::log_line(&agent, "self-test skipped"));
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_self_tests_total{"));
    page.check();
}

/// Writes the file as it was before, until the agent names the contention.
fn overwrite(node: &Node, agent: &Agent, name: &str, bytes: &[u8]) {
    let path = node.root().join(name);
    let good = fs::read(&path).unwrap();
    crate::until::until("the contention is named", || {
        if fs::read(&path).is_ok_and(|found| found == good) {
            node.replace(&path, bytes);
        }
        agent.log().contains("keeps being overwritten")
    });
}

#[test]
fn another_program_removes_the_plugin_entry() {
    let node = node();
    let mut agent = node.start();
    agent.until_ready();
    let mut page = FaultPage::new("plugin-entry-removed");
    overwrite(&node, &agent, "etc/10-calico.conflist", CALICO.as_bytes());
    not_ready(&mut page, &node, &agent, "keeps being overwritten");
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_contention_active"));
    page.check();
}

#[test]
fn another_agent_overwrites_the_plugin() {
    let node = node();
    let mut agent = node.start();
    agent.until_ready();
    let mut page = FaultPage::new("two-agents");
    overwrite(&node, &agent, "bin/linkerd-cni", b"another plugin");
    let line = super::fault::log_line(&agent, "keeps being overwritten");
    page.shows(Source::AgentLog, &super::fault::in_container(&node, &line));
    page.shows(Source::Metrics, &metrics(&agent, "linkerd_cni_agent_contention_active"));
    page.check();
}
