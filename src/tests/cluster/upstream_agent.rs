//! Upstream's agent on the node, outside a pod.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testkit::upstream_agent::{UpstreamAgent, UpstreamFiles};

use crate::active;
use crate::agent::KUBECONFIG;
use crate::cni::upstream_entry;
use crate::kubectl::{command, kubectl};
use crate::scene::OnDrop;

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const ACCOUNT: &str = "upstream-agent";

pub fn active_conflist() -> (PathBuf, String) {
    let path = active::path("").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Creates a ServiceAccount with the rights of upstream's. Dropping the value deletes it.
pub fn create_account() -> OnDrop<impl FnMut()> {
    kubectl(&format!("create serviceaccount {ACCOUNT} -n default"));
    let account = format!("--serviceaccount=default:{ACCOUNT}");
    kubectl(&format!("create clusterrolebinding {ACCOUNT} --clusterrole=view {account}"));
    OnDrop(|| {
        for object in ["serviceaccount", "clusterrolebinding"] {
            let _ = command(&format!("delete {object} {ACCOUNT} -n default")).output();
        }
    })
}

/// Starts upstream's agent, which gets SIGTERM when `is_over` returns true, or when the value is
/// dropped.
pub fn start_until(is_over: impl Fn() -> bool + Send + 'static) -> UpstreamAgent {
    let mut entry = upstream_entry();
    entry["kubernetes"]["kubeconfig"] = KUBECONFIG.into();
    let files = UpstreamFiles {
        plugin_path: BINARY.into(),
        plugin: fs::read(env!("CARGO_BIN_EXE_linkerd-cni")).unwrap(),
        kubeconfig_path: KUBECONFIG.into(),
        kubeconfig: kubeconfig(),
        entry,
    };
    UpstreamAgent::start_until(files, is_over)
}

fn kubeconfig() -> String {
    let text = kubectl("config view --raw --minify --flatten -o json");
    let own_kubeconfig: Value = serde_json::from_str(&text).unwrap();
    let cluster = &own_kubeconfig["clusters"][0]["cluster"];
    let token = kubectl(&format!("create token {ACCOUNT} -n default"));
    let template = include_str!("upstream_kubeconfig.yaml").trim_end();
    template.replace("CLUSTER", &cluster.to_string()).replace("TOKEN", token.trim())
}
