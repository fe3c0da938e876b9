//! Tests directories that may be the wrong ones, because they lack plugins of the primary CNI or
//! are behind links.

use std::fs;
use std::os::unix::fs::symlink;

use crate::node::{CALICO, LIST, Node};
use crate::until::until;

const REQUIRE: (&str, &str) = ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "true");

#[test]
fn bin_dir_without_plugins_of_the_primary_cni_causes_only_a_warning() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    let warning = "CNI directories: 10-calico.conflist names the plugins calico, portmap";
    for text in [warning, "set the chart's platform or destCNIBinDir"] {
        assert_eq!(agent.log().matches(text).count(), 1, "{}", agent.log());
    }
    fs::write(node.bin("portmap"), "").unwrap();
    until("the warning is resolved", || agent.log().contains("CNI directories: resolved"));
}

#[test]
fn require_network_plugins_delays_chaining_until_the_bin_dir_has_plugins() {
    let node = Node::with_calico();
    let mut agent = node.start_with(&[REQUIRE]);
    until("the reason", || agent.ready().1.contains("not chained"));
    let (status, why) = agent.ready();
    assert_eq!(status, 500);
    assert!(why.contains("destCNIBinDir"), "{why}");
    assert_eq!(node.text(LIST), CALICO);
    fs::write(node.bin("portmap"), "").unwrap();
    agent.until_ready();
    assert!(node.chained(LIST));
    // Plugins that are removed later do not prevent chaining.
    fs::remove_file(node.bin("portmap")).unwrap();
    until("the warning", || agent.log().contains("CNI directories: 10-calico"));
    node.rewrite_calico();
    agent.until_ready();
}

#[test]
fn require_network_plugins_prevents_chaining_behind_an_unreadable_config() {
    let node = Node::with_calico();
    let link = node.net("05-link.conflist");
    symlink("/no/such/network.conflist", &link).unwrap();
    let mut agent = node.start_with(&[REQUIRE]);
    until("the reason", || {
        let why = agent.ready().1;
        why.contains("network config: ") && !why.contains("being corrected")
    });
    let why = agent.ready().1;
    assert!(why.contains("10-calico.conflist names the plugins calico, portmap"), "{why}");
    assert_eq!(node.text(LIST), CALICO);
    fs::write(node.bin("portmap"), "").unwrap();
    until("the entry", || node.chained(LIST));
    fs::remove_file(&link).unwrap();
    agent.until_ready();
}

/// In the path of k3s's bin dir, `current` is an absolute link to the directory of the running
/// version. k3s changes the link when another version starts.
#[test]
fn absolute_link_in_the_path_of_the_bin_dir_is_followed_below_the_host_root() {
    let node = Node::uninstalling_with_calico();
    let data = node.root().join("data");
    for version in ["one", "two"] {
        fs::create_dir_all(data.join(version).join("bin")).unwrap();
    }
    symlink("/data/one", data.join("current")).unwrap();
    let vars = [("DEST_CNI_BIN_DIR", "/data/current/bin"), ("LINKERD_CNI_RESYNC_SECONDS", "1")];
    let mut agent = node.start_ready_with(&vars);
    assert!(data.join("one/bin/linkerd-cni").exists(), "{}", agent.log());
    symlink("/data/two", data.join("new")).unwrap();
    fs::rename(data.join("new"), data.join("current")).unwrap();
    let moved = "/data/current/bin leads to another directory of the node than at the start";
    until(moved, || agent.get("/live").0 == 500 && agent.ready().1.contains(moved));
    assert!(!data.join("two/bin/linkerd-cni").exists());
    // The failed liveness probe makes the kubelet restart the container in the same pod.
    agent.kill();
    let mut agent = node.start_ready_with(&vars);
    assert!(data.join("two/bin/linkerd-cni").exists(), "{}", agent.log());
    assert_eq!(agent.get("/live").0, 200);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert!(!data.join("two/bin/linkerd-cni").exists());
    assert_eq!(node.text(LIST), CALICO);
}

/// The bin dir has no plugin of the primary CNI, because the runtime uses several bin dirs. But
/// upstream's agent has installed its plugin there, so this dir works.
#[test]
fn require_network_plugins_accepts_the_bin_dir_of_an_earlier_agent() {
    let node = Node::uninstalling_with_calico();
    node.install();
    fs::write(node.bin("linkerd-cni"), "upstream's plugin").unwrap();

    let mut agent = node.start_ready_with(&[REQUIRE]);
    assert!(agent.log().contains("CNI directories: 10-calico.conflist names the plugins"));
    // The agent also chains the plugin again when the primary CNI rewrites its config.
    node.rewrite_calico();
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(node.text(LIST), CALICO);
}

#[test]
fn require_network_plugins_rejects_a_new_bin_dir_without_plugins_on_upgrade() {
    let node = Node::with_calico();
    node.install();
    let chained = node.text(LIST);
    fs::create_dir(node.root().join("moved")).unwrap();
    let agent = node.start_with(&[REQUIRE, ("DEST_CNI_BIN_DIR", "/moved")]);
    until("the reason", || agent.ready().1.contains("destCNIBinDir"));
    assert_eq!(node.text(LIST), chained);
}
