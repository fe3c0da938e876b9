//! The plugin and the agent for the other architecture, under qemu-user. qemu does not pass on
//! `NETLINK_NETFILTER`, so the backends that run the host's iptables are tested.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::call::{Call, Outcome};
use testkit::namespaces::Namespaces;

use crate::{VERSION, must, release};

/// Returns a command that runs the program of the other architecture under qemu.
fn emulated(program: &str) -> Command {
    let (architecture, qemu) = match std::env::consts::ARCH {
        "aarch64" => ("amd64", "qemu-x86_64-static"),
        _ => ("arm64", "qemu-aarch64-static"),
    };
    let mut command = Command::new(qemu);
    command.arg(release().join(format!("{program}-v{VERSION}-linux-{architecture}")));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs ADD of a pod with these annotations.
fn add(netns: &Path, annotations: Value, iptables_mode: &str) -> Outcome {
    let call = Call::with_kubeconfig("ADD", netns, Path::new("/dev/null"));
    let call = call.annotated(annotations).linkerd("iptables-mode", iptables_mode);
    call.run_command(&mut emulated("linkerd-cni"), &call.config.to_string())
}

#[test]
fn emulated_agent_starts_and_the_plugin_decides_on_pods() {
    let version = must(emulated("linkerd-cni").env("CNI_COMMAND", "VERSION"));
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
    assert!(must(emulated("linkerd2-cni-install").arg("--help")).contains("Usage"));

    let missing = Path::new("/var/run/netns/missing");
    let skipped = add(missing, json!({"a": "b"}), "nft").succeeded();
    assert_eq!(skipped.json()["cniVersion"], "1.0.0");
    let annotations = json!({
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "config.linkerd.io/proxy-uid": "root",
    });
    add(missing, annotations, "nft").failed(110, "proxy-uid");
}

#[test]
fn emulated_plugin_redirects_a_meshed_pod_with_the_hosts_iptables() {
    let annotations = json!({
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/inject": "enabled",
        "config.linkerd.io/skip-inbound-ports": "25",
    });
    for (mode, program) in [("nft", "iptables-nft"), ("legacy", "iptables-legacy")] {
        let namespaces = Namespaces::new();
        add(&namespaces.path(), annotations.clone(), mode).succeeded();
        let rules = namespaces.nat(program);
        for part in ["--to-ports 4143", "--to-ports 4140", "--dports 4191,4190,25"] {
            assert!(rules.contains(part), "{mode}: {part}: {rules}");
        }
    }
}
