//! The plugin and the agent for the other architecture, under qemu-user. qemu does not pass on `NETLINK_NETFILTER`,
//! so the backends that run the host's iptables are tested.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::{VERSION, cni, must, release, said};

/// The program of the architecture that this machine does not have.
fn emulated(program: &str) -> Command {
    let (architecture, qemu) = match std::env::consts::ARCH {
        "aarch64" => ("amd64", "qemu-x86_64-static"),
        _ => ("arm64", "qemu-aarch64-static"),
    };
    let path = release().join(format!("{program}-v{VERSION}-linux-{architecture}"));
    let mut command = Command::new(qemu);
    command.arg(path).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Runs ADD of a pod with these annotations.
fn add(netns: &str, annotations: &Value, iptables_mode: &str) -> Output {
    let mut config = cni::upstream_entry();
    config["cniVersion"] = json!("1.0.0");
    config["kubernetes"] = json!({"kubeconfig": "/dev/null"});
    config["linkerd"]["iptables-mode"] = json!(iptables_mode);
    config["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": annotations});
    config["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [], "interfaces": [], "dns": {}});
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=c0ffee00-0000-4000-8000-000000000001";
    let mut child = emulated("linkerd-cni")
        .envs(cni::environment("ADD", netns))
        .env("CNI_ARGS", args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A network namespace without a name: it also goes when this process is killed.
struct Netns(File);

impl Netns {
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program).args(args);
        String::from_utf8(must(&mut command)).unwrap()
    }
}

#[test]
fn the_emulated_agent_starts_and_the_plugin_skips_an_unmeshed_pod_and_refuses_an_annotation() {
    let version = must(emulated("linkerd-cni").env("CNI_COMMAND", "VERSION").stdin(Stdio::null()));
    let version: Value = serde_json::from_slice(&version).unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
    let help = must(emulated("linkerd2-cni-install").arg("--help"));
    assert!(String::from_utf8(help).unwrap().contains("Usage"));

    let missing = "/var/run/netns/missing";
    let skipped = add(missing, &json!({"a": "b"}), "nft");
    assert!(skipped.status.success(), "{}", said(&skipped));
    let result: Value = serde_json::from_slice(&skipped.stdout).unwrap();
    assert_eq!(result["cniVersion"], "1.0.0");
    let annotations = json!({
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "config.linkerd.io/proxy-uid": "root",
    });
    let refused = add(missing, &annotations, "nft");
    let error: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(error["code"], 110, "{}", said(&refused));
}

#[test]
fn the_emulated_plugin_redirects_a_meshed_pod_with_the_hosts_iptables() {
    let annotations = json!({
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/inject": "enabled",
        "config.linkerd.io/skip-inbound-ports": "25",
    });
    for (mode, save) in [("nft", "iptables-nft-save"), ("legacy", "iptables-legacy-save")] {
        let netns = Netns(linkerd2_cni::netns::fresh().unwrap());
        let output = add(&netns.path(), &annotations, mode);
        assert!(output.status.success(), "{mode}: {}", said(&output));
        let rules = netns.run(save, &["-t", "nat"]);
        for part in ["--to-ports 4143", "--to-ports 4140", "--dports 4191,4190,25"] {
            assert!(rules.contains(part), "{mode}: {part}: {rules}");
        }
    }
}
