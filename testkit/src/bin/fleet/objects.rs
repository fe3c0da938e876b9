//! The objects in the API: the chart's, Nodes, the agents' pods and meshed pods.

use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, ensure};
use linkerd2_cni::kube::Client;
use serde_json::{Value, json};
use testkit::chart::yaml;

use crate::control_plane::ControlPlane;

pub const NAMESPACE: &str = "linkerd-cni";
pub const SERVICE_ACCOUNT: &str = "linkerd-cni";
const PODS_NAMESPACE: &str = "apps";
const CREATORS: usize = 16;

/// Returns the name of a node. In the requests of a node, only the name of the agent's pod contains
/// it.
pub fn node_name(node: usize) -> String {
    format!("n{node:05}")
}

/// Returns the number of the node with this name.
pub fn node_of(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}

pub fn agent_pod_name(node: usize) -> String {
    format!("linkerd-cni-{}", node_name(node))
}

/// Creates all objects of a fleet.
pub fn create(
    control_plane: &ControlPlane,
    manifests: &Path,
    nodes: usize,
    pods: usize,
) -> anyhow::Result<()> {
    let client = &control_plane.admin;
    for namespace in [NAMESPACE, PODS_NAMESPACE] {
        client.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))?;
        // No controller manager runs, which would create this account.
        let account = json!({"metadata": {"name": "default"}});
        client.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account)?;
    }
    let status = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(control_plane.state.join("admin.kubeconfig"))
        .args(["apply", "--server-side", "-f"])
        .arg(manifests)
        .stdout(std::process::Stdio::null())
        .status()?;
    ensure!(status.success(), "kubectl apply: {status}");
    in_parallel(nodes, |node| create_node(client, node))?;
    in_parallel(nodes * pods, |index| {
        create_pod(client, PODS_NAMESPACE, &meshed_pod(index % nodes, index))
    })
}

/// Creates a pod that has a sandbox. The agents ask for the Events of pods that have none.
fn create_pod(client: &Client, namespace: &str, pod: &Value) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    client.post(&path, pod)?;
    let name = pod["metadata"]["name"].as_str().context("the pod has a name")?;
    let status = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]});
    Ok(client.merge_patch(&format!("{path}/{name}/status"), &json!({"status": status}))?)
}

fn create_node(client: &Client, node: usize) -> anyhow::Result<()> {
    let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": node_name(node)});
    client
        .post("/api/v1/nodes", &json!({"metadata": {"name": node_name(node), "labels": labels}}))?;
    let mut agent_pod = manifest("agent");
    agent_pod["metadata"]["name"] = agent_pod_name(node).into();
    agent_pod["spec"]["nodeName"] = node_name(node).into();
    create_pod(client, NAMESPACE, &agent_pod)
}

/// Calls `action` with each number below `count`, on several threads.
pub fn in_parallel(
    count: usize,
    action: impl Fn(usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for first in 0..CREATORS {
            let action = &action;
            threads.push(scope.spawn(move || -> anyhow::Result<()> {
                for number in (first..count).step_by(CREATORS) {
                    action(number)?;
                }
                Ok(())
            }));
        }
        for thread in threads {
            thread.join().unwrap()?;
        }
        Ok(())
    })
}

/// A pod of the size that the proxy injector makes: 12 KiB as the API server returns it.
fn meshed_pod(node: usize, index: usize) -> Value {
    let variables: Vec<Value> = (0..60)
        .map(|number| json!({"name": format!("LINKERD2_PROXY_{number}"), "value": "x".repeat(90)}))
        .collect();
    let mut pod = manifest("meshed");
    pod["metadata"]["name"] = format!("app-{index}").into();
    pod["spec"]["nodeName"] = node_name(node).into();
    pod["spec"]["containers"][0]["env"] = variables.into();
    pod
}

fn manifest(name: &str) -> Value {
    yaml(include_str!("pods.yaml"))[name].take()
}
