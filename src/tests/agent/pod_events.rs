//! How the agent reports what plugin records say of a pod: Events, log lines, metrics.

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use serde_json::{Value, json};

use crate::agent_with_api::Scene;
use crate::until::until;

const KEY: &str = "config.linkerd.io/skip-outbound-ports";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/emojivoto/events";

impl Scene {
    /// A ready agent with an API server and a record socket.
    fn with_socket() -> Scene {
        let scene = Scene::start(&[("LINKERD_CNI_POD_NAME", "linkerd-cni-abc")]);
        until("the socket", || scene.node.net(".linkerd-cni.sock").exists());
        scene
    }

    /// Sends the record of a redirected pod whose UID ends with `number`, with `changes` to its keys.
    fn send(&self, number: u32, changes: &Value) {
        let mut record = json!({
            "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
            "pod_uid": format!("c0ffee00-0000-4000-8000-{number:012}"), "container_id": "c",
            "decision": "redirected", "backend": "native", "requests": 2, "ms": 3,
        });
        record.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let path = self.node.net(".linkerd-cni.sock");
        let writer = UnixDatagram::unbound().unwrap();
        writer.send_to(record.to_string().as_bytes(), path).unwrap();
    }

    /// Waits until the agent has posted its Events about the records so far, which are less than a burst.
    fn settle(&self) {
        self.send(99, &json!({"degraded": {"code": 101, "msg": ""}}));
        let is_last = |event: &Value| event["regarding"]["uid"].as_str().unwrap().ends_with("99");
        until("the last Event", || self.posted().iter().any(is_last));
    }

    /// The bodies of the Events on pods, with that of [`Scene::settle`].
    fn posted(&self) -> Vec<Value> {
        let posted = self.api.received(|request| request.path == EVENTS);
        posted.into_iter().map(|request| request.body).collect()
    }

    /// The Events on pods.
    fn events(&self) -> Vec<Value> {
        let mut events = self.posted();
        events.retain(|event| !event["regarding"]["uid"].as_str().unwrap().ends_with("99"));
        events
    }

    /// How many lists of `KEY` were counted.
    fn counted(&self) -> f64 {
        self.agent.metric(&format!("linkerd_cni_plugin_ignored_ports_total{{source=\"{KEY}\"}}"))
    }
}

/// Changes of a record: an annotation with invalid ports.
fn invalid_ports() -> Value {
    json!({"ignored": [{"source": KEY, "elements": ["http", "30-20"]}]})
}

fn note(event: &Value) -> &str {
    event["note"].as_str().unwrap()
}

#[test]
fn ignored_ports_are_in_an_event_on_the_pod_in_the_log_and_in_the_metrics() {
    let scene = Scene::with_socket();
    scene.send(1, &invalid_ports());
    until("the Event", || scene.events().len() == 1);
    let event = scene.events().remove(0);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "LinkerdCNIPortsIgnored");
    assert_eq!(event["reportingInstance"], "linkerd-cni-abc");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "emojivoto", "name": "web-1",
        "uid": "c0ffee00-0000-4000-8000-000000000001"});
    assert_eq!(event["regarding"], pod);
    for part in [KEY, "\"http\", \"30-20\"", "0-65535", "lower-upper"] {
        assert!(note(&event).contains(part), "{part}: {event}");
    }
    let line = format!("; ignored in {KEY}: \"http\", \"30-20\"");
    until("the log line", || scene.agent.log().contains(&line));
    assert!(scene.agent.log().contains("WARN linkerd-cni: ADD emojivoto/web-1"));
    assert_eq!(scene.counted(), 1.0);
}

#[test]
fn a_pod_redirected_without_the_api_server_is_in_an_event_in_the_log_and_in_the_metrics() {
    let scene = Scene::with_socket();
    for _ in 0..2 {
        scene.send(1, &json!({"degraded": {"code": 102, "msg": "GET https://x: HTTP 401: no"}}));
    }
    until("the Event", || scene.events().len() == 1);
    let event = scene.events().remove(0);
    assert_eq!([&event["type"], &event["reason"]], ["Warning", "LinkerdCNIDegraded"]);
    assert_eq!(event["regarding"]["name"], "web-1");
    let cause = "the API server rejected the token in the kubeconfig";
    assert!(note(&event).contains(cause), "{event}");
    let line = "redirected by native, 2 requests, 3 ms; annotations and plugin entry alone \
                were used: GET https://x: HTTP 401: no (code 102)";
    until("the log line", || scene.agent.log().contains(line));
    let sample = "linkerd_cni_plugin_degraded_total{code=\"102\"}";
    until("the metric", || scene.agent.metric(sample) == 2.0);
    scene.settle();
    assert_eq!(scene.events().len(), 1);
}

#[test]
fn the_same_problem_of_a_pod_is_reported_once_and_a_flood_of_problems_at_a_limited_rate() {
    let scene = Scene::with_socket();
    let start = Instant::now();
    for _ in 0..20 {
        scene.send(1, &invalid_ports());
    }
    until("all are read", || scene.counted() == 20.0);
    for number in 2..99 {
        scene.send(number, &invalid_ports());
    }
    until("all are read", || scene.counted() == 117.0);
    until("the burst", || scene.events().len() >= 5);
    let events = scene.events();
    let allowed = 6 + start.elapsed().as_secs() / 6;
    assert!(events.len() as u64 <= allowed, "{} of {allowed}", events.len());
    let mut uids: Vec<&Value> = events.iter().map(|event| &event["regarding"]["uid"]).collect();
    uids.dedup();
    assert_eq!(uids.len(), events.len());
}

#[test]
fn an_agent_that_may_not_post_events_logs_it_once_and_posts_no_more() {
    let scene = Scene::with_socket();
    scene.api.state().events = 403;
    scene.send(1, &invalid_ports());
    let reason = "cannot post Events, because the agent's ServiceAccount may not create Events";
    until("the reason", || scene.agent.log().contains(reason));
    for number in 2..30 {
        scene.send(number, &invalid_ports());
    }
    until("all are read", || scene.counted() == 29.0);
    assert_eq!(scene.events().len(), 1);
    assert_eq!(scene.agent.log().matches(reason).count(), 1);
}

#[test]
fn an_invalid_port_list_of_the_plugin_entry_is_logged_and_makes_no_event() {
    let scene = Scene::with_socket();
    let list = json!({"source": "outbound-ports-to-ignore", "elements": ["smtp"]});
    scene.send(1, &json!({"ignored": [list]}));
    let line = "; ignored in outbound-ports-to-ignore: \"smtp\"";
    until("the log line", || scene.agent.log().contains(line));
    scene.settle();
    assert_eq!(scene.events().len(), 0);
}

#[test]
fn a_record_without_a_valid_namespace_or_uid_makes_no_event() {
    let scene = Scene::with_socket();
    for (key, value) in [("namespace", ".."), ("pod_uid", "a b"), ("pod_uid", "")] {
        let mut changes = invalid_ports();
        changes[key] = json!(value);
        scene.send(1, &changes);
    }
    scene.settle();
    assert_eq!(scene.counted(), 2.0);
    assert_eq!(scene.api.asked("POST", "/events"), 1);
}

#[test]
fn a_failed_add_and_init_containers_before_the_proxy_each_make_one_event() {
    let scene = Scene::with_socket();
    let error = json!({"code": 101, "msg": "secret"});
    for _ in 0..3 {
        scene.send(1, &json!({"decision": "failed", "error": error}));
        scene.send(2, &json!({"blocked_init_containers": ["migrate"]}));
    }
    until("both Events", || scene.events().len() == 2);
    scene.settle();
    let events = scene.events();
    // Init containers may work without network, so that Event is no warning.
    for (event, kind, reason) in [
        (&events[0], "Warning", "LinkerdCNIFailed"),
        (&events[1], "Normal", "LinkerdCNIInitWithoutNetwork"),
    ] {
        assert_eq!([&event["type"], &event["reason"]], [kind, reason]);
    }
    assert!(!note(&events[0]).contains("secret"));
    assert!(note(&events[1]).contains("migrate"));
    let blocked = "linkerd_cni_plugin_pods_with_blocked_init_containers_total";
    assert_eq!(scene.agent.metric(blocked), 3.0);
}
