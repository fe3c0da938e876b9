//! Connections, Events and API requests, as the job for several nodes expects them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::cluster::kubectl::list;

use crate::families::{Family, state};
use crate::pods::Pods;
use crate::until::until;

pub fn assert_redirected(pods: &Pods, unmeshed: &str, meshed: &str) {
    let family = Family::all()[0];
    let [from, to] = [unmeshed, meshed].map(|name| family.to(&pods.ip(name), 8080));
    for (pod, container, target, responder) in [
        (unmeshed, "app", &to, "proxy-inbound"),
        (meshed, "app", &from, "proxy-outbound"),
        (meshed, "linkerd-proxy", &from, &*format!("app-of-{unmeshed}")),
    ] {
        let original = if responder.starts_with("proxy") { target } else { "" };
        pods.assert_connects([pod, container, target], responder, original);
    }
}

pub fn events_in(namespace: &str, reason: &str) -> Vec<Value> {
    list(&format!("events -n {namespace} --field-selector=reason={reason}"))
}

/// Waits for the Event with this reason. Panics if there is more than one, or if it was sent more than once.
pub fn only_event(namespace: &str, reason: &str) -> Value {
    until("the Event", || !events_in(namespace, reason).is_empty());
    let mut events = events_in(namespace, reason);
    assert_eq!(events.len(), 1, "{events:?}");
    let event = events.remove(0);
    let sent =
        [&event["count"], &event["series"]["count"]].map(|count| count.as_u64().unwrap_or(1));
    assert_eq!(sent, [1, 1], "{event}");
    event
}

pub fn controllers_that_asked_about(namespace: &str) -> BTreeSet<String> {
    let log = fs::read_to_string(state().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let asked = events.filter(|event| {
        let agent = event["userAgent"].as_str().unwrap_or_default();
        agent.starts_with("linkerd-cni-repair-controller/")
            && event["objectRef"]["namespace"] == namespace
    });
    let pod = "authentication.kubernetes.io/pod-name";
    asked.map(|event| event["user"]["extra"][pod][0].as_str().unwrap_or("?").to_owned()).collect()
}
