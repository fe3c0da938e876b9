//! How port lists with ignored elements are reported: Events, log lines, metrics.

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::agent_with_api;
use crate::api::Api;
use crate::node::Node;
use crate::until::until;

const KEY: &str = "config.linkerd.io/skip-outbound-ports";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/emojivoto/events";
const OWN_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/linkerd-cni/events";

/// An agent that has an API server and listens.
struct Scene {
    api: Api,
    agent: Agent,
    node: Node,
    writer: UnixDatagram,
}

impl Scene {
    fn new() -> Scene {
        let api = Api::start();
        let node = agent_with_api::node(&api);
        let pod = ("LINKERD_CNI_POD_NAME", "linkerd-cni-abc".to_owned());
        let mut agent = node.start_owned(&[&api.vars()[..], &[pod]].concat());
        agent.until_ready();
        let writer = UnixDatagram::unbound().unwrap();
        let scene = Scene { api, agent, node, writer };
        until("the socket", || scene.node.net(".linkerd-cni.sock").exists());
        scene
    }

    /// Sends what the plugin sends of a pod whose UID ends with `number`.
    fn send(&self, number: u32, lists: &Value) {
        let record = json!({
            "level": "warn", "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
            "pod_uid": format!("c0ffee00-0000-4000-8000-{number:012}"),
            "container_id": "c", "decision": "redirected", "backend": "native",
            "requests": 2, "ms": 3, "ignored": lists,
        });
        let path = self.node.net(".linkerd-cni.sock");
        let sent = self.writer.send_to(record.to_string().as_bytes(), path);
        sent.unwrap();
    }

    /// Sends the record of a pod that was redirected without the API server.
    fn send_degraded(&self, number: u32) {
        let record = json!({
            "level": "warn", "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
            "pod_uid": format!("c0ffee00-0000-4000-8000-{number:012}"),
            "container_id": "c", "decision": "redirected", "backend": "native",
            "requests": 1, "ms": 3, "degraded": {"code": 102, "msg": "GET https://x: HTTP 401: no"},
        });
        let path = self.node.net(".linkerd-cni.sock");
        self.writer.send_to(record.to_string().as_bytes(), path).unwrap();
    }

    /// Waits until the agent has posted all that it is to post of what was sent: what it
    /// posts on its own pod goes after that.
    fn settle(&self) {
        for (count, key) in
            ["outbound-ports-to-ignore", "inbound-ports-to-ignore"].into_iter().enumerate()
        {
            self.send(0, &json!([{"source": key, "elements": ["x"], "more": 0}]));
            until(key, || self.api.asked("POST", OWN_EVENTS) > count);
        }
    }

    /// The bodies of the Events on the pod.
    fn events(&self) -> Vec<Value> {
        let state = self.api.state();
        let asked = state.requests.iter().filter(|(_, path, _)| path == EVENTS);
        asked.map(|(.., body)| body.clone()).collect()
    }

    fn metric(&self, sample: &str) -> u64 {
        let metrics = self.agent.get("/metrics").1;
        let line = metrics.lines().find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_default().trim().parse().unwrap_or_default()
    }

    /// How many lists of `KEY` were counted.
    fn counted(&self) -> u64 {
        self.metric(&format!("linkerd_cni_plugin_ignored_ports_total{{source=\"{KEY}\"}}"))
    }
}

fn lists() -> Value {
    json!([{"source": KEY, "elements": ["http", "30-20"], "more": 0}])
}

#[test]
fn ignored_elements_are_in_an_event_on_the_pod_in_the_log_and_in_the_metrics() {
    let scene = Scene::new();
    scene.send(1, &lists());
    until("the Event", || scene.events().len() == 1);
    let event = scene.events().remove(0);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "LinkerdCNIPortsIgnored");
    assert_eq!(event["reportingInstance"], "linkerd-cni-abc");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "emojivoto", "name": "web-1",
        "uid": "c0ffee00-0000-4000-8000-000000000001"});
    assert_eq!(event["regarding"], pod);
    let note = event["note"].as_str().unwrap();
    for part in [KEY, "\"http\", \"30-20\"", "0-65535", "lower-upper"] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let line = format!("; ignored in {KEY}: \"http\", \"30-20\"");
    until("the log line", || scene.agent.log().contains(&line));
    assert!(scene.agent.log().contains("WARN linkerd-cni: ADD emojivoto/web-1"));
    assert_eq!(scene.counted(), 1);
}

#[test]
fn a_pod_redirected_without_the_api_server_is_in_an_event_in_the_log_and_in_the_metrics() {
    let scene = Scene::new();
    scene.send_degraded(1);
    scene.send_degraded(1);
    until("the Event", || scene.events().len() == 1);
    let event = scene.events().remove(0);
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Warning"), &json!("LinkerdCNIDegraded"))
    );
    assert_eq!(event["regarding"]["name"], "web-1");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("the API server rejected the token in the kubeconfig"), "{note}");
    let line = "redirected by native, 1 requests, 3 ms; annotations and plugin entry alone \
                were used: GET https://x: HTTP 401: no (code 102)";
    until("the log line", || scene.agent.log().contains(line));
    let sample = "linkerd_cni_plugin_degraded_total{code=\"102\"}";
    until("the metric", || scene.metric(sample) == 2);
    scene.settle();
    assert_eq!(scene.events().len(), 1);
}

#[test]
fn the_same_problem_is_reported_once_and_a_flood_of_problems_costs_few_requests() {
    let scene = Scene::new();
    let start = Instant::now();
    for _ in 0..20 {
        scene.send(1, &lists());
    }
    until("all are read", || scene.counted() == 20);
    for number in 2..100 {
        scene.send(number, &lists());
    }
    until("all are read", || scene.counted() == 118);
    until("the burst", || scene.events().len() >= 5);
    scene.settle();
    let posted = scene.events().len() as u64;
    let allowed = 6 + start.elapsed().as_secs() / 6;
    assert!(posted <= allowed, "{posted} of {allowed}");
    let uid = |event: &Value| event["regarding"]["uid"].as_str().unwrap().to_owned();
    let mut uids: Vec<String> = scene.events().iter().map(uid).collect();
    uids.dedup();
    assert_eq!(uids.len(), scene.events().len());
}

#[test]
fn an_agent_that_may_not_post_events_says_so_once_and_stops_asking() {
    let scene = Scene::new();
    scene.api.state().events = 403;
    scene.send(1, &lists());
    let said = "cannot post Events, because the agent's ServiceAccount may not create Events";
    until("the reason", || scene.agent.log().contains(said));
    for number in 2..30 {
        scene.send(number, &lists());
    }
    scene.settle();
    assert_eq!(scene.counted(), 29);
    assert_eq!(scene.events().len(), 1);
    assert_eq!(scene.agent.log().matches(said).count(), 1);
}

#[test]
fn a_bad_list_of_the_plugin_entry_is_reported_once_on_the_agents_pod() {
    let scene = Scene::new();
    let list = json!([{"source": "outbound-ports-to-ignore", "elements": ["smtp"], "more": 0}]);
    for number in 1..4 {
        scene.send(number, &list);
    }
    scene.settle();
    assert_eq!(scene.api.asked("POST", OWN_EVENTS), 2);
    assert_eq!(scene.events().len(), 0);
    let asked = scene.api.state().requests.clone();
    let event = asked.iter().find(|(_, path, _)| path == OWN_EVENTS);
    let note = event.unwrap().2["note"].as_str().unwrap().to_owned();
    for part in ["outbound-ports-to-ignore: \"smtp\"", "ignoreOutboundPorts"] {
        assert!(note.contains(part), "{part}: {note}");
    }
}

#[test]
fn no_event_is_posted_on_what_a_record_does_not_name_as_the_api_server_would() {
    let scene = Scene::new();
    for (namespace, uid) in
        [("..", "c0ffee00-0000-4000-8000-000000000001"), ("emojivoto", "u"), ("emojivoto", "")]
    {
        let record = json!({
            "level": "warn", "command": "ADD", "namespace": namespace, "pod": "web-1",
            "pod_uid": uid, "container_id": "c", "decision": "redirected",
            "requests": 2, "ms": 3, "ignored": lists(),
        });
        let path = scene.node.net(".linkerd-cni.sock");
        scene.writer.send_to(record.to_string().as_bytes(), path).unwrap();
    }
    scene.settle();
    assert_eq!(scene.counted(), 2);
    assert_eq!(scene.metric("linkerd_cni_plugin_rejected_records_total"), 1);
    assert_eq!(scene.api.asked("POST", "/events"), 2);
}

#[test]
fn a_failed_add_and_init_containers_before_the_proxy_each_make_one_event() {
    let scene = Scene::new();
    let send = |number: u32, more: Value| {
        let mut record = json!({
            "level": "info", "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
            "pod_uid": format!("c0ffee00-0000-4000-8000-{number:012}"), "container_id": "c",
            "decision": "redirected", "requests": 1, "ms": 3,
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = scene.node.net(".linkerd-cni.sock");
        scene.writer.send_to(record.to_string().as_bytes(), path).unwrap();
    };
    for _ in 0..3 {
        send(1, json!({"decision": "failed", "error": {"code": 101, "msg": "secret"}}));
        send(2, json!({"blocked_init_containers": ["migrate"]}));
    }
    until("both Events", || scene.events().len() == 2);
    scene.settle();
    let events = scene.events();
    let reasons: Vec<_> = events.iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["LinkerdCNIFailed", "LinkerdCNIInitWithoutNetwork"]);
    // Init containers may work without network, so that is no failure.
    let types: Vec<_> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(types, ["Warning", "Normal"]);
    assert!(!events[0]["note"].as_str().unwrap().contains("secret"));
    assert!(events[1]["note"].as_str().unwrap().contains("migrate"));
    assert_eq!(scene.metric("linkerd_cni_plugin_pods_with_blocked_init_containers_total"), 3);
}
