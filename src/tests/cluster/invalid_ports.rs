//! Pods whose port lists have invalid elements.

use std::time::Instant;

use serde_json::{Value, json};

use crate::pods::{self, kubectl};
use crate::scene::Scene;
use crate::until::until;

const KEY: &str = "config.linkerd.io/skip-outbound-ports";

#[test]
fn bad_elements_of_a_port_list_are_ignored_and_reported_on_the_pod_unless_annotations_are_strict() {
    let scene = Scene::installed(&["--set", "ignoreInboundPorts=http\\,9999"]);
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("server"), annotated("lenient", "http,5432,30-20")]);

    let server = pods.ip("server");
    for (port, responder) in [(5432, "refused"), (3306, "proxy-outbound"), (20, "proxy-outbound")] {
        let response = pods.connect("lenient", "app", &format!("{server}:{port}"));
        assert!(response.starts_with(responder), "port {port}: {response}");
    }
    let target = format!("{}:9999", pods.ip("lenient"));
    let response = pods.connect("server", "app", &target);
    assert!(response.starts_with("refused"), "{response}");
    the_pod_has_an_event();
    the_agent_has_logged_it();

    // Strict annotations would reject the release's list too, so that list is corrected.
    let strict = ["--set", "strictAnnotations=true,ignoreInboundPorts=9999"];
    helm.run("upgrade", &strict);
    assert_eq!(node.linkerd_entry()["linkerd"]["strict-annotations"], true);
    pods.create(&[annotated("strict", "http,5432,30-20")]);
    until("the Event with the reason", || {
        let text = kubectl("describe pod -n strict strict");
        text.contains(KEY) && text.contains("\"http\" is not a port")
    });
    assert_eq!(pods.field("strict", ".status.phase"), "Pending");
    let correction = format!("{KEY}=5432");
    kubectl(&format!("annotate pod -n strict strict --overwrite {correction}"));
    pods.until_ready("strict");
    scene.remove();
}

fn annotated(name: &str, ports: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"][KEY] = json!(ports);
    pod
}
fn the_pod_has_an_event() {
    let begin = Instant::now();
    until("the Event", || {
        let text = kubectl("describe pod -n lenient lenient");
        let line = text.lines().find(|line| line.contains("LinkerdCNIPortsIgnored"));
        line.is_some_and(|line| {
            println!("{:>6.1?} {}", begin.elapsed(), line.trim());
            let parts = [KEY, "\"http\", \"30-20\"", "0-65535", "lower-upper"];
            line.contains("Warning") && parts.iter().all(|part| line.contains(part))
        })
    });
}

fn the_agent_has_logged_it() {
    let log = kubectl("logs -n linkerd-cni daemonset/linkerd-cni");
    let line = log.lines().find(|line| line.contains("lenient/lenient"));
    let text = format!(
        "ignored in {KEY}: \"http\", \"30-20\"; ignored in inbound-ports-to-ignore: \"http\""
    );
    assert!(line.is_some_and(|line| line.contains(&text)), "{log}");
}
