//! `linkerd cni` on a real cluster. `catalogue` has what it says of faults.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::helm::NAMESPACE;
use crate::node::netns_of;
use crate::pods::{self, Pods, kubectl};
use crate::scene::Scene;
use crate::until::until;
use crate::upstream::Program;
use crate::upstream_agent::{self, account};

/// Runs `linkerd cni` and prints its output. Returns whether it succeeded, and the output.
pub fn cni(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli")).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "", "{args:?}");
    println!("$ linkerd cni {}\n{text}", args.join(" "));
    (output.status.success(), text)
}

pub fn the_namespace_passes_the_checks_before_an_installation() {
    // Other tests leave the namespace, without this label.
    let _ = pods::command(&format!("create namespace {NAMESPACE}")).output();
    label("pod-security.kubernetes.io/enforce=privileged");
    let (passes, report) = cni(&["check", "--pre", "--wait=0s"]);
    assert!(passes && !report.contains('‼'), "{report}");
}

pub fn linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod(pods: &Pods) {
    let (passes, report) = cni(&["check"]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, json) = cni(&["check", "--output=json", "--as-group=[]", "--proxy=false"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(passes && json["success"] == true, "{json}");
    let (passes, table) = cni(&["nodes"]);
    assert!(passes && table.contains("   yes   "), "{table}");
    let (passes, explained) = cni(&["explain", "meshed", "-n", "meshed"]);
    assert!(passes);
    let listed = netns_of(&pods.ip("meshed")).rules();
    let comments = |text: &str| -> BTreeSet<String> {
        let parts = text.split("comment \"").skip(1);
        parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())).collect()
    };
    assert_eq!(comments(&explained), comments(&listed), "{explained}\n{listed}");
}

/// Upstream's commands for a pod, with `iptables` for the program of the mode.
const UPSTREAM_RULES: &str = include_str!("extension.sh");

#[test]
fn linkerd_cni_compares_pods_beside_upstreams_agent_and_names_seeded_differences() {
    let scene = Scene::begin();
    let _account = account();
    scene.helm.install_upstream(Program::Pause);
    let upstream = upstream_agent::start_until(|| false);
    until("upstream's entry", || scene.node.entry().is_some());
    let modes = ["nft", "legacy", "plain"];
    scene.pods.start(&modes.map(pods::meshed));
    let run = |mode: &str, script: &str| {
        let program = if mode == "plain" { "iptables" } else { &format!("iptables-{mode}") };
        let script = script.replace("iptables ", &format!("{program} -w -t nat "));
        netns_of(&scene.pods.ip(mode)).must(&["sh", "-e", "-c", &script]);
    };
    for mode in modes {
        run(mode, "nft flush ruleset");
        run(mode, UPSTREAM_RULES);
    }
    let before = scene.node.files();
    let compare = || cni(&["compare", "--wait=2m"]);
    let (passes, report) = compare();
    assert!(passes && report == "3 pods: 3 equal, 0 differ, 0 cannot be compared\n", "{report}");

    run("nft", "iptables -I PROXY_INIT_REDIRECT -p tcp --dport 25 -j RETURN");
    run("legacy", "iptables -D PROXY_INIT_REDIRECT 1");
    run("plain", "iptables -F PREROUTING");
    let (passes, report) = compare();
    let wanted = [
        "legacy/legacy: inbound TCP to port 4190-4191 goes to the proxy's port 4143 now, and would not",
        "nft/nft: inbound TCP to port 25 does not go to the proxy now, and would go to its port 4143",
        "plain/plain: inbound TCP to port 0-4189,4192-65535 does not go to the proxy now, and would go to its port 4143",
        "3 pods: 0 equal, 3 differ, 0 cannot be compared",
    ];
    assert!(!passes && report.lines().eq(wanted), "{report}");
    assert_eq!(scene.node.files(), before);
    let left = kubectl(&format!("get daemonsets -n {NAMESPACE} -o name"));
    assert_eq!(left.trim(), "daemonset.apps/linkerd-cni");

    for mode in modes {
        kubectl(&format!("delete pod {mode} -n {mode} --timeout=60s"));
    }
    scene.helm.uninstall();
    drop(upstream);
    assert!(scene.is_restored());
}

pub fn label(label: &str) {
    kubectl(&format!("label --overwrite namespace {NAMESPACE} {label}"));
}
