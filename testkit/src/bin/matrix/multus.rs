//! Checks of nodes where Multus calls the primary CNI.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::chart::yaml;
use testkit::cluster::families::Family;
use testkit::cluster::helm::{Helm, NAMESPACE};
use testkit::cluster::kubectl::{kubectl, kubectl_with_stdin};
use testkit::cluster::node::{Files, Netns, Node, netns_of};
use testkit::cluster::pods::{self, Pods};
use testkit::until::until;

use crate::{network, primary_cni};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Directory of the network configs that Multus finds by their names.
const NET_DIR: &str = "/etc/cni/multus/net.d";

const DAEMON_PID: &str = "/var/lib/linkerd2-cni-cluster/pid/multus-daemon";
const DAEMON_CONF: &str = "/etc/cni/net.d/00-multus.conf";

/// Starts a pod with a second network. Asserts that its netns has the rules of a pod with one
/// network.
pub fn start_with_second_network(pods: &Pods) -> String {
    let mut ranges: Vec<Value> = Vec::new();
    for family in Family::all() {
        ranges.push(json!([{"subnet": second_subnet(family)}]));
    }
    let objects = yaml(include_str!("multus.yaml"));
    let mut config = objects["config"].clone();
    let mut attachment = objects["attachment"].clone();
    config["ipam"]["ranges"] = ranges.into();
    attachment["spec"]["config"] = config.to_string().into();
    kubectl_with_stdin("apply -f -", &attachment.to_string());
    pods.start(&[
        attached(pods::meshed("two-networks"), "default/second"),
        pods::meshed("one-network"),
    ]);
    let two = netns_of(&pods.ip("two-networks"));
    let one = netns_of(&pods.ip("one-network"));
    assert!(two.output(&["ip", "-o", "address", "show", "dev", "net1"]).contains("net1"));
    assert_eq!(two.rules(), one.rules());
    assert_one_set_of_rules(&two);
    pods.assert_answers("unmeshed", "two-networks", "proxy-inbound");
    "redirected, with the rules of a pod with one network, once".to_owned()
}

/// Stops Multus' daemon, which removes its config. Asserts that pods start nevertheless. If the
/// agent had made a config of its own from that of Multus, it would stay, and no pod would start.
pub fn stop_daemon(pods: &Pods) -> String {
    let pid = fs::read_to_string(DAEMON_PID).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    until("the daemon's network config is removed", || !Path::new(DAEMON_CONF).exists());
    pods.start(&[pods::meshed("without-multus")]);
    pods.assert_answers("unmeshed", "without-multus", "proxy-inbound");
    network::rewrite_config();
    "a meshed pod starts and is redirected".to_owned()
}

/// Installs the plugin with `chained: false`. Asserts that Multus calls the plugin only for pods
/// that name the plugin's NetworkAttachmentDefinition.
pub fn install_as_attachment(helm: &Helm, pods: &Pods) -> String {
    // Removes the plugin binary that the last uninstall left. No pod needs it any more.
    let _ = fs::remove_file("/opt/cni/bin/linkerd-cni");
    let standalone =
        format!("chained=false,networkAttachmentDefinition.enabled=true,destCNINetDir={NET_DIR}");
    helm.run("install", &["--set", &standalone]);
    assert!(Path::new(NET_DIR).join("linkerd-cni.conf").exists());
    pods.start(&[attached(pods::meshed("named"), "default/linkerd-cni"), pods::meshed("unnamed")]);
    // The connections are made by an unmeshed pod and by a proxy, so that they are not redirected
    // where they begin.
    pods.assert_answers("unnamed", "named", "proxy-inbound");
    let target = Family::all()[0].to(&pods.ip("unnamed"), 8080);
    let unnamed = pods.connect("named", "linkerd-proxy", &target);
    assert!(unnamed.starts_with("app-of-unnamed"), "{unnamed}");
    assert_one_set_of_rules(&netns_of(&pods.ip("named")));
    helm.must(&["test", "linkerd-cni", "-n", NAMESPACE, "--timeout", "60s"]);
    "only the pod that names it is redirected".to_owned()
}

/// Enables the chart's MutatingAdmissionPolicy. Asserts that it adds the name of the
/// NetworkAttachmentDefinition, which is in another namespace, to each new meshed pod.
pub fn annotate_by_policy(helm: &Helm, pods: &Pods) -> String {
    let annotates = "--set=networkAttachmentDefinition.annotatePods=true";
    let namespace = "--set=networkAttachmentDefinition.namespace=kube-system";
    helm.run("upgrade", &["--reuse-values", annotates, namespace]);
    let both = "default/second,kube-system/linkerd-cni";
    let cases = [
        (pods::meshed("annotated"), json!("kube-system/linkerd-cni")),
        (attached(pods::meshed("annotated-twice"), "default/second"), json!(both)),
        (pods::unmeshed("unannotated"), Value::Null),
    ];
    let (first, annotation) = &cases[0];
    until("the policy is in effect", || networks_of(&admitted(first)) == annotation);
    for (pod, annotation) in &cases {
        let name = pod["metadata"]["name"].as_str().unwrap();
        pods.start(std::slice::from_ref(pod));
        assert_eq!(networks_of(&pods.pod(name)), annotation, "{name}");
        if annotation.is_string() {
            pods.assert_answers("unnamed", name, "proxy-inbound");
            assert_one_set_of_rules(&netns_of(&pods.ip(name)));
        }
    }
    pods.assert_answers("annotated", "unannotated", "proxy-outbound");
    "each meshed pod has the annotation and one set of rules, also one with a second network"
        .to_owned()
}

/// Uninstalls the plugin that is not chained. Asserts that its files are removed, and that its pods
/// can be deleted.
pub fn uninstall_without_chaining(node: &Node, helm: &Helm, before: &Files, pods: Pods) -> String {
    helm.uninstall();
    primary_cni::assert_files_after_uninstall(node, before);
    assert!(!Path::new(NET_DIR).join("linkerd-cni.conf").exists());
    for name in ["named", "annotated", "annotated-twice"] {
        kubectl(&format!("delete pod -n {name} {name} --grace-period=1 --timeout=60s"));
    }
    drop(pods);
    "the node's files as before; pods that named it are deleted".to_owned()
}

/// Returns the pod as the API server would create it in the namespace `default`.
fn admitted(pod: &Value) -> Value {
    let pod = pods::in_default(pod.clone());
    let output = kubectl_with_stdin("create --dry-run=server -o json -f -", &pod.to_string());
    serde_json::from_str(&output).unwrap()
}

fn networks_of(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"][NETWORKS]
}

fn attached(mut pod: Value, networks: &str) -> Value {
    pod["metadata"]["annotations"][NETWORKS] = json!(networks);
    pod
}

/// Returns the subnet of the second network. No other network of these clusters has these
/// addresses.
fn second_subnet(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "10.99.0.0/24",
        Family::Ipv6 => "fd00:10:99::/64",
    }
}

/// Asserts that the netns has the redirect rules once for each family.
fn assert_one_set_of_rules(netns: &Netns) {
    let rules = netns.rules();
    let outbound = rules.matches("redirect-all-outgoing-to-proxy-port").count();
    assert_eq!(outbound, Family::all().len(), "{rules}");
}
