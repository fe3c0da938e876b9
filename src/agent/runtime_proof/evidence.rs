//! Finds the Events in which the container runtime says that it could not run the plugin. Pure.
//!
//! containerd and CRI-O call plugins with the same library. Its texts, and those that they add:
//! - `failed to find plugin "linkerd-cni" in path [...]`: [`FindInPath`]
//! - `netplugin failed with no error message: fork/exec PATH: CAUSE`: [`pluginErr`], with the error
//!   of Go's `os/exec` if the kernel did not start the plugin
//! - `plugin type="linkerd-cni" name="NAME" failed (add): ERROR`: `AddNetworkList`
//! - `Network plugin returns error: ERROR`: the kubelet, if containerd 2 asks the plugins for their
//!   status
//!
//! The text after `failed (add): ` decides from its first character on. If the plugin has run and
//! has failed, it is the plugin's own message, which may quote what the pod's author wrote.
//!
//! [`FindInPath`]: https://github.com/containernetworking/cni/blob/v1.3.0/pkg/invoke/find.go#L25-L48
//! [`pluginErr`]: https://github.com/containernetworking/cni/blob/v1.3.0/pkg/invoke/raw_exec.go

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::SETTLING_TIME;
use crate::cni::args::PodRef;
use crate::conflist::PLUGIN;
use crate::kube::pod_events::PodEvent;
use crate::node::withdrawal::{Evidence, RunFailure};
use crate::quote::one_line;

/// Longest text of the runtime that is quoted, in characters.
const MESSAGE_LIMIT: usize = 200;
/// Shortest time between two failures that are evidence. One failure may be of a moment in which
/// another program replaced the plugin. The kubelet tries again after some 10 s.
const BETWEEN_FAILURES: Duration = Duration::from_secs(5);
/// Longest time since the newest failure. The runtime may run the plugin by now.
const NEWEST_AGE: Duration = Duration::from_secs(120);
/// Why the kernel does not start a program that it will not start at the next attempt either. Other
/// causes, such as `text file busy` or `cannot allocate memory`, pass.
const LASTING_CAUSES: [&str; 4] = [
    "permission denied",
    "exec format error",
    "no such file or directory",
    "operation not permitted",
];

/// Returns the failures among the `events` of `pod`, by the node's clock: Events in which the kubelet
/// of `node` says that the runtime could not run the plugin. `node` is `None` if the agent does not
/// know the name of its node.
pub fn failures(
    events: &[PodEvent],
    pod: &PodRef,
    node: Option<&str>,
) -> BTreeMap<SystemTime, Evidence> {
    let mut failures = BTreeMap::new();
    for event in events {
        if !is_of_kubelet(event, node) {
            continue;
        }
        let Some(evidence) = read_evidence(event, pod) else { continue };
        for date in event.dates() {
            failures.entry(date).or_insert_with(|| evidence.clone());
        }
    }
    failures
}

/// Returns the newest failure, if two failures after `since` are evidence. Times after `now` are
/// ignored: the kubelet has the same clock.
pub fn judge(
    failures: &BTreeMap<SystemTime, Evidence>,
    since: SystemTime,
    now: SystemTime,
) -> Option<Evidence> {
    let counts = |date: &SystemTime| *date > since + SETTLING_TIME && *date <= now;
    let mut counted = failures.iter().filter(|(date, _)| counts(date));
    let (oldest, _) = counted.next()?;
    let (newest, evidence) = counted.next_back()?;
    let is_lasting = *newest >= *oldest + BETWEEN_FAILURES;
    let is_recent = now <= *newest + NEWEST_AGE;
    if is_lasting && is_recent { Some(evidence.clone()) } else { None }
}

/// Returns what the Event shows, if it says that the runtime could not run the plugin.
fn read_evidence(event: &PodEvent, pod: &PodRef) -> Option<Evidence> {
    let error = plugin_error(event)?;
    let failure = run_failure(error)?;
    let message = one_line(error).chars().take(MESSAGE_LIMIT).collect();
    Some(Evidence { pod: pod.to_string(), failure, message })
}

fn is_of_kubelet(event: &PodEvent, node: Option<&str>) -> bool {
    event.source.component == "kubelet" && node.is_none_or(|node| node == event.source.host)
}

/// Returns the error of the plugin, or of the runtime that could not run the plugin.
fn plugin_error(event: &PodEvent) -> Option<&str> {
    match event.reason.as_str() {
        "FailedCreatePodSandBox" => failed_add(&event.message),
        "NetworkNotReady" => {
            let (_, error) = event.message.split_once("Network plugin returns error: ")?;
            Some(error)
        }
        _ => None,
    }
}

/// Returns the error with which ADD of the plugin failed. `None` if another plugin failed, also if
/// that plugin quotes an error of this one: Multus repeats without quotes what the pod's author
/// wrote.
fn failed_add(message: &str) -> Option<&str> {
    let (_, named) = message.split_once("plugin type=\"")?;
    let (name, described) = named.split_once('"')?;
    if name != PLUGIN {
        return None;
    }
    let (_, error) = described.split_once(" failed (add): ")?;
    Some(error)
}

/// Returns how the runtime failed to run the plugin. `None` if the plugin has run, or may run at
/// the next attempt.
fn run_failure(error: &str) -> Option<RunFailure> {
    if error.starts_with(&format!("failed to find plugin \"{PLUGIN}\" in path ")) {
        return Some(RunFailure::NotFound);
    }
    let start = error.strip_prefix("netplugin failed with no error message: fork/exec ")?;
    let (_, cause) = start.split_once(&format!("/{PLUGIN}: "))?;
    if LASTING_CAUSES.iter().any(|lasting| cause.starts_with(lasting)) {
        return Some(RunFailure::NotStarted);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> PodRef {
        let [namespace, name, uid] = ["shop", "web", "u-1"].map(str::to_owned);
        PodRef { namespace, name, uid }
    }

    fn event(seconds: u64, change: impl FnOnce(&mut Value)) -> PodEvent {
        let date = UNIX_EPOCH + Duration::from_secs(seconds);
        let mut event = json!({
            "reason": "FailedCreatePodSandBox",
            "message": "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to \
                setup network for sandbox \"c58b\": plugin type=\"linkerd-cni\" name=\"k8s\" failed \
                (add): failed to find plugin \"linkerd-cni\" in path [/usr/lib/cni]",
            "source": {"component": "kubelet", "host": "node-1"},
            "lastTimestamp": humantime::format_rfc3339_seconds(date).to_string(),
        });
        change(&mut event);
        serde_json::from_value(event).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Finds evidence against a chain that is in place since second 100.
    fn find(events: &[PodEvent], now: u64) -> Option<Evidence> {
        judge(&failures(events, &pod(), Some("node-1")), at(100), at(now))
    }

    /// Finds evidence in an Event that is repeated after 6 s.
    fn found(seconds: u64, change: impl Fn(&mut Value)) -> Option<Evidence> {
        find(&[event(seconds, &change), event(seconds + 6, &change)], 120)
    }

    #[test]
    fn only_an_event_of_this_nodes_kubelet_that_is_newer_than_the_chain_is_evidence() {
        type Change = fn(&mut Value);
        let rows: [(&str, u64, Change, bool); 8] = [
            ("newer", 103, |_| {}, true),
            ("older", 99, |_| {}, false),
            ("perhaps of the network config before", 102, |_| {}, false),
            ("without a time", 103, |event| event["lastTimestamp"] = Value::Null, false),
            ("another reason", 103, |event| event["reason"] = json!("FailedMount"), false),
            ("another node", 103, |event| event["source"]["host"] = json!("node-2"), false),
            ("another program", 103, |event| event["source"]["component"] = json!("x"), false),
            ("no source", 103, |event| event["source"] = Value::Null, false),
        ];
        for (name, seconds, change, expected) in rows {
            assert_eq!(found(seconds, change).is_some(), expected, "{name}");
        }
        let evidence = found(103, |_| {}).unwrap();
        assert_eq!(evidence.pod, "shop/web");
        assert_eq!(
            evidence.message,
            "failed to find plugin \"linkerd-cni\" in path [/usr/lib/cni]"
        );
    }

    #[test]
    fn failures_are_evidence_if_they_last_and_are_recent() {
        for (name, dates, now, expected) in [
            ("one failure", vec![103], 120, false),
            ("two failures of a moment", vec![103, 106], 120, false),
            ("two failures", vec![103, 108], 120, true),
            ("one of them before the chain", vec![90, 108], 120, false),
            ("one of them in the future", vec![103, 130], 120, false),
            ("long ago", vec![103, 108], 229, false),
        ] {
            let events: Vec<_> = dates.into_iter().map(|date| event(date, |_| {})).collect();
            assert_eq!(find(&events, now).is_some(), expected, "{name}");
        }
        let series = event(108, |event| event["firstTimestamp"] = json!("1970-01-01T00:01:43Z"));
        assert!(find(&[series], 120).is_some(), "a series");
    }

    /// A row of `evidence.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Text {
        #[serde(default = "failed_sandbox")]
        reason: String,
        message: String,
        /// `None`: the text is no evidence.
        failure: Option<RunFailure>,
    }

    fn failed_sandbox() -> String {
        "FailedCreatePodSandBox".to_owned()
    }

    #[test]
    fn only_words_of_a_runtime_that_cannot_run_the_plugin_are_evidence() {
        for (name, row) in testkit::table::rows::<Text>(include_str!("evidence.yaml")) {
            let evidence = found(103, |event| {
                event["reason"] = json!(row.reason);
                event["message"] = json!(row.message);
            });
            let failure = evidence.map(|evidence| evidence.failure);
            assert_eq!(failure, row.failure, "{name}");
        }
    }
}
