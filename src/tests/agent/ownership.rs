//! Network configs that belong to another user or group, and the agent's capabilities.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::helm::Render;
use crate::node::{CALICO, CAPABILITIES, LIST, Node};

const FILE: &str = LIST;
/// Mode, user and group of a network config.
const OWNERS: [[u32; 3]; 3] = [[0o664, 0, 997], [0o660, 1000, 1000], [0o600, 1000, 0]];

fn node(mode: u32, uid: u32, gid: u32) -> Node {
    let node = Node::new();
    node.write(FILE, CALICO);
    chown(node.net(FILE), Some(uid), Some(gid)).unwrap();
    fs::set_permissions(node.net(FILE), PermissionsExt::from_mode(mode)).unwrap();
    node
}

fn owner(node: &Node) -> [u32; 3] {
    let metadata = fs::metadata(node.net(FILE)).unwrap();
    [metadata.mode() & 0o7777, metadata.uid(), metadata.gid()]
}

fn uninstall(agent: &mut Agent) {
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
}

#[test]
fn the_agents_of_these_tests_have_the_capabilities_of_the_chart() {
    let objects = Render::new().values(&json!({})).objects();
    let granted = &objects.container("install-cni")["securityContext"]["capabilities"];
    assert_eq!(granted["drop"], json!(["ALL"]));
    let granted = granted["add"].as_array().unwrap().iter();
    let granted: Vec<_> = granted.filter_map(Value::as_str).map(str::to_lowercase).collect();
    let bounding = format!("--bounding-set=-all,+{}", granted.join(",+"));
    assert!(CAPABILITIES.contains(&&*bounding), "the chart grants {granted:?}");
}

#[test]
fn a_network_config_of_another_user_keeps_its_owner_when_it_is_chained_and_given_back() {
    for [mode, uid, gid] in OWNERS {
        let node = node(mode, uid, gid);
        let mut agent = node.start_ready();
        assert!(node.chained(FILE), "{}", agent.log());
        assert_eq!(owner(&node), [mode, uid, gid]);
        uninstall(&mut agent);
        assert_eq!(node.text(FILE), CALICO);
        assert_eq!(owner(&node), [mode, uid, gid]);
    }
}

#[test]
fn without_the_capability_chown_a_network_config_is_chained_and_gets_the_owner_root() {
    for [mode, uid, gid] in OWNERS {
        let node = node(mode, uid, gid);
        let without = CAPABILITIES.map(|word| word.replace("+chown,", ""));
        let mut agent = node.start_under(&without.each_ref().map(|word| &**word), &[], &[]);
        agent.until_ready();
        assert!(node.chained(FILE), "{}", agent.log());
        assert_eq!(owner(&node), [mode, 0, 0]);
        let log = agent.log();
        assert!(log.contains(&format!("gets the owner 0:0 instead of {uid}:{gid}")), "{log}");
        assert!(log.contains("add the capability CHOWN to the container"), "{log}");
        uninstall(&mut agent);
        assert_eq!(node.text(FILE), CALICO);
    }
}

#[test]
fn without_the_capability_chown_a_copy_of_a_network_config_is_written_once() {
    let node = node(0o640, 1000, 1000);
    let without = CAPABILITIES.map(|word| word.replace("+chown,", ""));
    let vars = [("LINKERD_CNI_OWN_CONFIG", "true"), ("LINKERD_CNI_RESYNC_SECONDS", "1")];
    let mut agent = node.start_under(&without.each_ref().map(|word| &**word), &[], &vars);
    agent.until_ready();
    let inode = node.inode("00-linkerd-cni.conflist");
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(node.inode("00-linkerd-cni.conflist"), inode, "{}", agent.log());
    uninstall(&mut agent);
}
