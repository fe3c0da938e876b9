//! Upstream's agent beside this project's agent.

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

/// The network config with upstream's plugin entry.
pub fn list() -> String {
    chained(CALICO, &entry()).unwrap()
}

/// Templates of this project's agent: another one than upstream's agent has, and the same.
pub fn templates() -> [String; 2] {
    [TEMPLATE.into(), TEMPLATE.replace("4143", "4143, \"iptables-mode\": \"nft\"")]
}

/// Whether this project's agent wrote the plugin entry in `text`, with the template's format.
pub fn is_replaced(text: &str) -> bool {
    text.contains("\"linkerd\": {\"incoming-proxy-port\": 4143")
}

/// Waits until the agent is ready beside an upstream agent.
pub fn until_yielding(agent: &Agent) {
    until("ready beside the upstream agent", || {
        let (status, note) = agent.ready();
        status == 200 && note.contains("an upstream agent runs")
    });
}

/// Returns when the network configs have upstream's plugin entry.
pub fn start(node: &Node, kubeconfig: &str) -> UpstreamAgent {
    UpstreamAgent::start(UpstreamFiles {
        plugin_path: node.bin("linkerd-cni"),
        plugin: PLUGIN.to_vec(),
        kubeconfig_path: node.net("kubeconfig.json"),
        kubeconfig: kubeconfig.to_owned(),
        entry: entry(),
    })
}
