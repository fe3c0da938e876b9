//! The startup taint of a Node object that was deleted and registered again while the agent runs.

use std::time::Duration;

use serde_json::json;

use crate::agent_with_api;
use crate::api::Api;
use crate::until::{until, until_within};

const KEY: &str = "linkerd.io/cni-not-ready";

/// The kubelet registers its node only when it starts, and then also renews the tokens of all pods.
#[test]
fn the_startup_taint_of_a_node_registered_again_is_removed_within_minutes() {
    let api = Api::start();
    let taint = json!({"key": KEY, "effect": "NoSchedule"});
    api.state().taints = vec![taint.clone()];
    let node = agent_with_api::node(&api);
    let mut vars = api.vars().to_vec();
    vars.push(("LINKERD_CNI_STARTUP_TAINT", KEY.into()));
    vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
    let agent = node.start_owned(&vars);
    until("the taint is removed", || api.state().taints.is_empty());

    let reads = || api.asked("GET", "/api/v1/nodes/node-1");
    let before = reads();
    api.state().taints = vec![taint];
    api.state().tokens.push("token-2".into());
    node.rotate("token-2");
    until_within(Duration::from_secs(90), "the taint is removed again", || {
        api.state().taints.is_empty()
    });
    assert_eq!(reads(), before + 1, "{}", agent.log());
}
