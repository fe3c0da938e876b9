//! A stand-in for upstream's agent, which does on the node what that program does: it writes the
//! plugin binary and the kubeconfig when it starts, and its plugin entry whenever another program
//! wrote the conflist. When it ends, it removes all three, the binary first.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::agent::Agent;
use crate::node::{CALICO, LIST, Node, TEMPLATE};
use crate::repeated::Repeated;
use crate::until::until;

pub const KUBECONFIG: &str =
    "kind: Config\nusers:\n- name: linkerd-cni\n  user:\n    token: of-upstream\n";
/// Upstream's plugin binary, which differs from the agent's.
pub const PLUGIN: &[u8] = &[9; 400_000];

pub fn list() -> String {
    let mut list: Value = serde_json::from_str(CALICO).unwrap();
    let entry = serde_json::from_str(include_str!("upstream_entry.json")).unwrap();
    list["plugins"].as_array_mut().unwrap().push(entry);
    serde_json::to_string_pretty(&list).unwrap()
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

pub struct Upstream(Repeated<()>);

impl Upstream {
    /// Starts it, and waits until it has chained its entry.
    pub fn start(node: &Arc<Node>, kubeconfig: &str) -> Upstream {
        testkit::write_program(node.bin("linkerd-cni.new"), PLUGIN);
        fs::rename(node.bin("linkerd-cni.new"), node.bin("linkerd-cni")).unwrap();
        node.replace(&node.net("kubeconfig.json"), kubeconfig.as_bytes());
        let (writer, list) = (Arc::clone(node), list());
        let upstream = Upstream(Repeated::start(Duration::from_micros(500), (), move |()| {
            if writer.text(LIST) != list {
                writer.replace(&writer.net(LIST), list.as_bytes());
            }
        }));
        until("the upstream entry", || node.text(LIST) == self::list());
        upstream
    }

    /// Uninstalls in upstream's order, with its write in place.
    pub fn stop(self, node: &Node) {
        self.0.finish();
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        node.write(LIST, CALICO);
    }

    /// Ends as by SIGKILL, and leaves everything.
    pub fn kill(self) {
        self.0.finish();
    }
}
