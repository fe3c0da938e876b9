//! Pods as the container runtime has them, which needs no API server.

use std::fs;
use std::process::Command;

use serde_json::Value;

const CONTAINERD: &str = "/run/linkerd2-cni-cluster/containerd.sock";

/// IPv4 address of the pod whose name starts with `name`, from the runtime's cache of ADD results: kubelet takes up to a
/// minute to report it to an API server that was restarted. `None` if the pod has no network.
pub fn address_of(name: &str) -> Option<String> {
    let results = fs::read_dir("/var/lib/cni/results").unwrap();
    let texts = results.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let cached = texts.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
    let mut of_pod = cached.filter(|cached| {
        let args = cached["cniArgs"].as_array().into_iter().flatten();
        let names = args.filter(|arg| arg[0] == "K8S_POD_NAME");
        let mut names = names.filter_map(|arg| arg[1].as_str());
        // The loopback interface has a separate result.
        cached["ifName"] == "eth0" && names.any(|given| given.starts_with(name))
    });
    of_pod.find_map(|cached| {
        let address = cached["result"]["ips"][0]["address"].as_str()?;
        Some(address.split_once('/')?.0.to_owned())
    })
}

/// Kills the sandbox of the pod whose name starts with `name`, so that kubelet makes another one.
pub fn kill_sandbox(name: &str) {
    let running = running("sandbox", name);
    assert_eq!(running.len(), 1, "sandboxes of {name}: {running:?}");
    ctr(&["tasks", "kill", "--signal", "SIGKILL", &running[0]]);
}

/// The running containers of the pod whose name starts with `name`: those of the kind `sandbox` or `container`.
pub fn running(kind: &str, name: &str) -> Vec<String> {
    let kind = format!(r#"labels."io.cri-containerd.kind"=={kind}"#);
    let filter = format!(r#"{kind},labels."io.kubernetes.pod.name"~={name}"#);
    let containers = ctr(&["containers", "list", "--quiet", &filter]);
    let tasks = ctr(&["tasks", "list"]);
    let runs = |id: &&str| {
        let mut lines = tasks.lines();
        lines.any(|line| line.starts_with(id) && line.contains("RUNNING"))
    };
    containers.lines().filter(runs).map(str::to_owned).collect()
}

fn ctr(args: &[&str]) -> String {
    let output = Command::new("ctr")
        .args(["--address", CONTAINERD, "--namespace", "k8s.io"])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}
