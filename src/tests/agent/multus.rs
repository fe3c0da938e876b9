//! A node where Multus' daemon calls the primary CNI.

use std::fs;

use crate::node::{CALICO, Node};

const MULTUS: &str = "00-multus.conf";
/// The network config that the daemon writes when it starts, and removes when it stops.
const DAEMON: &str = r#"{"cniVersion":"0.3.1","name":"multus-cni-network",
"clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist","type":"multus-shim"}"#;

#[test]
fn the_config_of_multus_daemon_is_unchanged_and_the_conflist_that_it_names_is_chained() {
    let node = Node::uninstalling();
    node.write(MULTUS, DAEMON);
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start_ready(&[]);
    assert_eq!(node.text(MULTUS), DAEMON);
    assert!(node.chained("10-calico.conflist"));
    // A conflist made from it would stay when the daemon stops, and no pod could start.
    assert!(!node.net("00-multus.conflist").exists());
    fs::remove_file(node.net(MULTUS)).unwrap();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("10-calico.conflist"), CALICO);
    assert!(!node.net("00-multus.conflist").exists() && !node.net(MULTUS).exists());
}
