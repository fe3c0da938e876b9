//! Starts meshed pods during an event, and checks that all of them are redirected. The exit code of
//! a pod shows whether it was redirected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kubectl::kubectl;
use super::pods::{self, container, has_ended};
use super::{api, events};
use crate::OnDrop;

const NAMESPACE: &str = "burst";
/// Number of pods that are created together.
const BATCH: usize = 5;
/// Largest number of pods that have not ended. The number is limited, so that a small machine is
/// not overloaded.
const MAX_RUNNING: usize = 10;
/// Smallest number of pods in a burst. A small machine needs longer for them than the event takes.
const MIN_PODS: usize = 20;
/// Largest number of pods in a burst.
const MAX_PODS: usize = 60;
/// Time between two looks at the pods. A shorter time starts more pods during an event, and a small
/// machine takes long for each pod.
const POLL_INTERVAL: Duration = Duration::from_millis(700);
/// Time in which the last pods have to end. It is long, because two minutes were too short on a
/// machine with a load of 60.
const END_BUDGET: Duration = Duration::from_secs(300);

/// Starts pods with the injector's annotation during `event`.
pub fn start_annotated_pods_during(what: &str, event: impl FnOnce()) {
    start_without_failures(what, |_| annotations(), event);
}

/// Starts pods during `event`. Every second pod has no annotation, so it is redirected only if an
/// agent keeps the node's copy of the pods all the time.
pub fn start_mixed_pods_during(what: &str, event: impl FnOnce()) {
    start_without_failures(what, annotations_of_every_second_pod, event);
}

fn annotations_of_every_second_pod(number: usize) -> Value {
    if number.is_multiple_of(2) { json!({}) } else { annotations() }
}

/// Starts pods during `event`. Fails if a call of the plugin fails.
fn start_without_failures(what: &str, annotations: fn(usize) -> Value, event: impl FnOnce()) {
    let pod = |number| validating_pod(NAMESPACE, number, &annotations(number));
    let (_, failures) = start_during(pod, what, event);
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

/// Starts pods with validators during `event`, in which upstream's agent may remove the plugin.
/// Until this chart's agent has restored the plugin, the first attempt to start a pod may fail, and
/// up to a tenth of the pods may be stranded. The repair controller has to repair the stranded
/// pods.
pub fn start_validated_pods_during(what: &str, event: impl FnOnce()) {
    let (pods, _) = start_during(validated_pod, what, event);
    let stranded = pods.iter().filter(|pod| was_stranded(pod)).count();
    println!("{what}: {stranded} pods were stranded");
    assert!(10 * stranded <= pods.len(), "{what}: {stranded} of {} pods", pods.len());
}

fn annotations() -> Value {
    json!({"linkerd.io/proxy-version": "test"})
}

/// Runs `event` while pods start, whose manifests come from `pod`. Fails unless each pod is
/// redirected. Returns the pods, and the messages about failed calls of the plugin.
fn start_during(
    pod: impl Fn(usize) -> Value + Sync,
    what: &str,
    event: impl FnOnce(),
) -> (Vec<Value>, Vec<String>) {
    let _namespace = pods::namespace(NAMESPACE);
    let is_event_over = AtomicBool::new(false);
    let begin = Instant::now();
    let (event_time, result) = thread::scope(|scope| {
        let starter = scope.spawn(|| start_pods(&pod, &is_event_over));
        // The other thread has to end, too, if the event panics.
        let end = OnDrop(|| is_event_over.store(true, Ordering::Relaxed));
        event();
        let event_time = begin.elapsed();
        drop(end);
        (event_time, starter.join())
    });
    let pods = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let redirected = count_in_phase(&pods, "Succeeded");
    let not_redirected = count_in_phase(&pods, "Failed");
    let lost = pods.len() - redirected - not_redirected;
    // Kubelet repeats a failed attempt to start a pod, so the Events show failures of pods that
    // have started, too.
    let failures = events::list(NAMESPACE, "FailedCreatePodSandBox");
    println!(
        "{what}, {event_time:.1?}: {} pods in {:.1?}: {redirected} redirected, {not_redirected} \
         not redirected, {lost} never started; {} kinds of failed tries",
        pods.len(),
        begin.elapsed(),
        failures.len()
    );
    assert!(
        not_redirected == 0 && lost == 0,
        "{what}: {}",
        kubectl(&format!("get events,pods -n {NAMESPACE}"))
    );
    let mut messages = Vec::new();
    for event in &failures {
        let message = event["message"].as_str().unwrap_or_default();
        if message.contains("linkerd-cni") {
            messages.push(message.to_owned());
        }
    }
    (pods, messages)
}

fn count_in_phase(pods: &[Value], phase: &str) -> usize {
    pods.iter().filter(|pod| pod["status"]["phase"] == phase).count()
}

/// Creates pods until the event is over, and waits until the pods have ended. Returns the pods.
fn start_pods(pod: &impl Fn(usize) -> Value, is_event_over: &AtomicBool) -> Vec<Value> {
    let mut created = 0;
    while !is_event_over.load(Ordering::Relaxed) || created < MIN_PODS {
        let running = pods::list(NAMESPACE).iter().filter(|pod| !has_ended(pod)).count();
        if running <= MAX_RUNNING - BATCH && created < MAX_PODS {
            for number in created..created + BATCH {
                api::create(&pod(number));
            }
            created += BATCH;
        }
        thread::sleep(POLL_INTERVAL);
    }
    let deadline = Instant::now() + END_BUDGET;
    loop {
        let pods = pods::list(NAMESPACE);
        if pods.iter().all(has_ended) || Instant::now() > deadline {
            return pods;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// A meshed pod whose app connects to an address that no host has, as Linkerd's validator does. The
/// app succeeds if the connection is redirected to its own listener. The proxy does nothing.
pub fn validating_pod(namespace: &str, number: usize, annotations: &Value) -> Value {
    let app = container("app", 1000, &pods::validation("10s"));
    let mut proxy = container("linkerd-proxy", 2102, &["pause"]);
    proxy["restartPolicy"] = json!("Always");
    let mut pod = pods::manifest("ending");
    let name = format!("pod-{number}");
    pod["metadata"] = json!({"name": name, "namespace": namespace, "annotations": annotations});
    pod["spec"]["initContainers"] = json!([proxy]);
    pod["spec"]["containers"] = json!([app]);
    pod
}

/// A pod like [`validating_pod`], with Linkerd's annotation and a network validator. The validator
/// keeps the app from starting while the pod is stranded.
fn validated_pod(number: usize) -> Value {
    let mut pod = validating_pod(NAMESPACE, number, &annotations());
    let validator = container("linkerd-network-validator", 65534, &pods::validation("10s"));
    pod["spec"]["initContainers"].as_array_mut().unwrap().insert(0, validator);
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod
}

fn was_stranded(pod: &Value) -> bool {
    pod["status"]["initContainerStatuses"][0]["restartCount"].as_u64() != Some(0)
}
