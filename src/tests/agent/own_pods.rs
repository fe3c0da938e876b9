//! What the agent adds to the plugin entry, so that the plugin tells the agent's own pods.

use std::fs;

use serde_json::json;

use crate::node::{LIST, Node, TEMPLATE};
use crate::until::until;

#[test]
fn the_agent_writes_its_namespace_into_an_entry_whose_template_has_none() {
    let named = TEMPLATE.replace("4143", "4143, \"agent-namespace\": \"chosen\"");
    for (vars, beside_token, expected) in [
        (vec![("LINKERD_CNI_NAMESPACE", "mesh")], None, json!("mesh")),
        (vec![], Some("of-the-token\n"), json!("of-the-token")),
        (vec![("LINKERD_CNI_NAMESPACE", "mesh")], Some("of-the-token"), json!("mesh")),
        (
            vec![("LINKERD_CNI_NAMESPACE", "mesh"), ("CNI_NETWORK_CONFIG", named.as_str())],
            None,
            json!("chosen"),
        ),
        (vec![], None, json!(null)),
        (vec![], Some(" \n"), json!(null)),
    ] {
        let node = Node::with_calico();
        if let Some(namespace) = beside_token {
            fs::write(node.sa().join("namespace"), namespace).unwrap();
        }
        let before = node.tree();
        let mut agent = node.start_ready_with(&vars);
        let entry = &node.json(LIST)["plugins"][2];
        assert_eq!(entry["linkerd"]["agent-namespace"], expected);
        assert_eq!(entry["linkerd"]["agent-daemonset"], json!(null));
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn an_entry_with_the_agents_namespace_is_adopted_and_not_written_again() {
    let node = Node::with_calico();
    let vars = [("LINKERD_CNI_NAMESPACE", "mesh"), ("LINKERD_CNI_DAEMONSET", "mesh-cni")];
    let mut agent = node.start_ready_with(&vars);
    let entry = node.json(LIST)["plugins"][2].clone();
    assert_eq!(entry["linkerd"]["agent-daemonset"], "mesh-cni");
    let (text, inode) = (node.text(LIST), node.inode(LIST));
    agent.kill();

    // Somebody formats the list anew: the entry means the same.
    let formatted = node.json(LIST).to_string();
    for content in [&text, &formatted] {
        if *content != text {
            node.write(LIST, content);
        }
        let mut agent = node.start_ready_with(&vars);
        agent.kill();
        assert_eq!(node.text(LIST), *content);
        assert_eq!(node.inode(LIST), inode);
    }

    // An entry of an agent that did not add it yet is brought up to date.
    let older = text.replace(",\"agent-namespace\": \"mesh\"", "");
    assert_ne!(older, text);
    node.write(LIST, &older);
    let mut agent = node.start_ready_with(&vars);
    until("the namespace", || node.json(LIST)["plugins"][2] == entry);
    agent.kill();
}
