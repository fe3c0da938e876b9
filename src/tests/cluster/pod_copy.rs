//! The copy of the node's pods that the agent keeps. Without the copy, the plugin sends requests
//! (`src/tests/plugin`), and audits repair pods without annotations (`src/tests/repair`).

use std::time::Duration;

use serde_json::{Value, json};

use crate::kubectl::kubectl;
use crate::outage::{count_redirected, create_all, injected, injector_annotations};
use crate::pods::{self, container, in_default};
use crate::scene::Scene;
use crate::until::{until, until_within};
use crate::{agent, api};

const PODS: usize = 60;

#[test]
fn meshed_pods_of_every_origin_are_redirected_without_api_request() {
    let scene = Scene::installed(&[]);
    let node = &scene.node;
    let pods = &scene.pods;
    pods.start(&[pods::unmeshed("client"), pods::meshed("web")]);
    let mut annotated = pods::unmeshed("annotated");
    annotated["metadata"]["annotations"] = injector_annotations();
    pods.start(&[injected("injected"), hand_made("by-hand"), annotated, pod_with_linkerd_init()]);
    for name in ["web", "injected", "by-hand"] {
        pods.assert_answers("client", name, "proxy-inbound");
    }
    pods.assert_answers("client", "annotated", "app-of-annotated");
    pods.assert_answers("client", "with-init", "app-of-with-init");
    copy_by_kubectl_debug();
    let copy = copied_pod();
    let address = copy["status"]["podIP"].as_str().unwrap();
    pods.until_proxied("client", &format!("{address}:8080"));
    let static_pod = node.static_pod(&in_default(hand_made("static")));
    until("the static pod runs", || static_pod.runs());
    pods.until_proxied("client", &format!("{}:8080", static_pod.address()));

    let names = ["web", "injected", "by-hand", "annotated", "with-init", "client", "default"];
    let counts = names.map(|name| (name, node.api_requests(name)));
    assert!(counts.iter().all(|(_, count)| *count == 0), "{counts:?}");
    drop(static_pod);
    assert_sixty_pods_find_their_copies();
    scene.remove();
}

/// Starts 60 pods at once. Asserts that the plugin finds the copies of 99 % of them within its
/// limit of 100 ms.
fn assert_sixty_pods_find_their_copies() {
    let namespace = pods::namespace("sixty");
    let annotations = [json!({"linkerd.io/proxy-version": "test"}), json!({})];
    create_all("sixty", (0..PODS).map(|number| annotations[number % 2].clone()));
    until_within(Duration::from_secs(180), "all pods are redirected", || {
        count_redirected("sixty") == PODS
    });
    let log = agent::log();
    let adds: Vec<_> = log.lines().filter(|line| line.contains("ADD sixty/")).collect();
    let without_copy: Vec<_> = adds.iter().filter(|line| !line.contains("source copy")).collect();
    let mut times: Vec<u64> = adds.iter().filter_map(|line| milliseconds(line)).collect();
    times.sort_unstable();
    let percent = 100.0 * without_copy.len() as f64 / adds.len() as f64;
    println!(
        "{} ADDs at once: {percent:.1} % had no copy after 100 ms; median {} ms, longest {} ms",
        adds.len(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
    assert!(adds.len() >= PODS && percent <= 1.0, "{without_copy:#?}");
    drop(namespace);
}

/// Returns the time in a record of ADD.
fn milliseconds(line: &str) -> Option<u64> {
    line.split(" ms").next()?.rsplit(' ').next()?.parse().ok()
}

/// A meshed pod whose author added the proxy, without any label or annotation of Linkerd.
pub fn hand_made(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = json!({});
    pod
}

/// A pod that the plugin skips, because its container `linkerd-init` would apply the rules.
fn pod_with_linkerd_init() -> Value {
    let mut pod = pods::meshed("with-init");
    pod["spec"]["initContainers"] = json!([container("linkerd-init", 1000, &["wait", "1s"])]);
    pod
}

fn copy_by_kubectl_debug() {
    let image = "--image=docker.io/library/linkerd2-cni-probe:test --image-pull-policy=Never";
    let debug = format!("debug -n web web --copy-to=web-copy --profile=general {image}");
    kubectl(&format!("{debug} --container=debugger --attach=false -- /probe wait 60m"));
    until("the copy's proxy runs", || {
        let copy = copied_pod();
        let mut statuses = copy["status"]["containerStatuses"].as_array().into_iter().flatten();
        let proxy = statuses.find(|status| status["name"] == "linkerd-proxy");
        proxy.is_some_and(|proxy| proxy["state"]["running"].is_object())
    });
}

fn copied_pod() -> Value {
    api::get("/api/v1/namespaces/web/pods/web-copy")
}
