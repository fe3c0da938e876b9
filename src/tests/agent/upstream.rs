//! Runs a fake of upstream's agent beside this project's agent.

use serde_json::Value;
use testkit::upstream_agent::{UpstreamAgent, UpstreamFiles, chained};

use crate::agent::Agent;
use crate::node::{CALICO, Node, TEMPLATE};
use crate::until::until;

pub const KUBECONFIG: &str =
    "kind: Config\nusers:\n- name: linkerd-cni\n  user:\n    token: of-upstream\n";
/// Upstream's plugin binary, which differs from the agent's.
pub const PLUGIN: &[u8] = &[9; 400_000];

fn entry() -> Value {
    serde_json::from_str(include_str!("upstream_entry.json")).unwrap()
}

/// Returns the network config with upstream's plugin entry.
pub fn list() -> String {
    chained(CALICO, &entry()).unwrap()
}

/// Returns templates for this project's agent. The first one differs from the template of
/// upstream's agent, the second one is the same.
pub fn templates() -> [String; 2] {
    [TEMPLATE.into(), TEMPLATE.replace("4143", "4143, \"iptables-mode\": \"nft\"")]
}

/// Returns whether this project's agent wrote the plugin entry in `text`. The entry has the format
/// of the template then.
pub fn is_replaced(text: &str) -> bool {
    text.contains("\"linkerd\": {\"incoming-proxy-port\": 4143")
}

/// Waits until the agent is ready and reports that an upstream agent runs.
pub fn until_yielding(agent: &Agent) {
    until("ready beside the upstream agent", || {
        let (status, note) = agent.ready();
        status == 200 && note.contains("an upstream agent runs")
    });
}

/// Starts upstream's agent. Returns after it has written its plugin entry to the network configs.
pub fn start(node: &Node, kubeconfig: &str) -> UpstreamAgent {
    start_with_entry(node, kubeconfig, entry())
}

/// The same with an agent that has read another ConfigMap.
pub fn start_with_entry(node: &Node, kubeconfig: &str, entry: Value) -> UpstreamAgent {
    UpstreamAgent::start(UpstreamFiles {
        plugin_path: node.bin("linkerd-cni"),
        plugin: PLUGIN.to_vec(),
        kubeconfig_path: node.net("kubeconfig.json"),
        kubeconfig: kubeconfig.to_owned(),
        entry,
    })
}
