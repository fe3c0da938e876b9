//! Pods whose port lists have bad elements.

use std::time::Instant;

use serde_json::{Value, json};

use crate::helm::Helm;
use crate::node::Node;
use crate::pods::{self, Pods, kubectl};
use crate::until::until;

const KEY: &str = "config.linkerd.io/skip-outbound-ports";

#[test]
fn bad_elements_of_a_port_list_are_ignored_and_reported_on_the_pod_unless_annotations_are_strict() {
    let node = Node::here();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &["--set", "ignoreInboundPorts=http\\,9999"]);
    pods.start(&[pods::unmeshed("server"), annotated("lenient", "http,5432,30-20")]);

    let server = pods.ip("server");
    for (port, who) in [(5432, "refused"), (3306, "proxy-outbound"), (20, "proxy-outbound")] {
        let answer = pods.connect("lenient", "app", &format!("{server}:{port}"));
        assert!(answer.starts_with(who), "port {port}: {answer}");
    }
    let target = format!("{}:9999", pods.ip("lenient"));
    let answer = pods.connect("server", "app", &target);
    assert!(answer.starts_with("refused"), "{answer}");
    the_pod_has_an_event();
    the_agent_has_said_it();

    // What is left of the release's bad list would be refused with strict annotations.
    let strict = ["--set", "strictAnnotations=true,ignoreInboundPorts=9999"];
    helm.run("upgrade", &strict);
    assert_eq!(node.linkerd_entry()["linkerd"]["strict-annotations"], true);
    pods.create(&[annotated("strict", "http,5432,30-20")]);
    until("the reason", || {
        let said = kubectl(&["describe", "pod", "-n", "strict", "strict"]);
        said.contains(KEY) && said.contains("\"http\" is not a port")
    });
    assert_eq!(pods.field("strict", ".status.phase"), "Pending");
    let correction = format!("{KEY}=5432");
    kubectl(&["annotate", "pod", "-n", "strict", "strict", "--overwrite", &correction]);
    pods.until_ready("strict");

    drop(pods);
    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

fn annotated(name: &str, ports: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"][KEY] = json!(ports);
    pod
}

#[allow(clippy::print_stdout, reason = "shows the Event")]
fn the_pod_has_an_event() {
    let begin = Instant::now();
    until("the Event", || {
        let said = kubectl(&["describe", "pod", "-n", "lenient", "lenient"]);
        let line = said.lines().find(|line| line.contains("LinkerdCNIPortsIgnored"));
        line.is_some_and(|line| {
            println!("{:>6.1?} {}", begin.elapsed(), line.trim());
            let parts = [KEY, "\"http\", \"30-20\"", "0-65535", "lower-upper"];
            line.contains("Warning") && parts.iter().all(|part| line.contains(part))
        })
    });
}

fn the_agent_has_said_it() {
    let log = kubectl(&["logs", "-n", "linkerd-cni", "daemonset/linkerd-cni"]);
    let line = log.lines().find(|line| line.contains("lenient/lenient"));
    let said = format!(
        "ignored in {KEY}: \"http\", \"30-20\"; ignored in inbound-ports-to-ignore: \"http\""
    );
    assert!(line.is_some_and(|line| line.contains(&said)), "{log}");
    let own = kubectl(&["get", "events", "-n", "linkerd-cni"]);
    assert!(own.contains("LinkerdCNIPortsIgnored"), "{own}");
}
