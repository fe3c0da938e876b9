//! Meshed pods that start while something else happens. Each tells by its exit code whether it was redirected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kubectl::{kubectl, list};
use super::pods::{self, apply_all, container};
use crate::OnDrop;

const NAMESPACE: &str = "burst";
const BATCH: usize = 10;
/// Highest number of pods that have not ended, so that a small machine is not overloaded.
const WAITING: usize = 20;
/// Lowest and highest number of pods in a burst. The lowest number takes a small machine longer than the event.
const LEAST: usize = 20;
const MOST: usize = 90;
/// Time between two calls of kubectl, each of which takes 0.25 s of CPU time.
const POLL: Duration = Duration::from_millis(700);
/// Time in which the last pods have to end. On a machine with a load of 60, two minutes were too short.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn during(what: &str, event: impl FnOnce()) {
    without_failures(what, |_| annotations(), event);
}

/// The same, and every second pod is hand-made, without an annotation: an agent has to keep its copy all the time.
pub fn of_any_origin(what: &str, event: impl FnOnce()) {
    let of_number =
        |number: usize| if number.is_multiple_of(2) { json!({}) } else { annotations() };
    without_failures(what, of_number, event);
}

fn without_failures(what: &str, of_number: impl Fn(usize) -> Value + Sync, event: impl FnOnce()) {
    let pod = |number| validating_pod(NAMESPACE, number, &of_number(number));
    let (_, failures) = of(pod, what, event);
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

/// With validators: until this chart's agent answers the write of upstream's, which takes away the plugin, first tries
/// may fail, and a tenth of the pods may be stranded, which the repair controller has to mend.
pub fn with_retries(what: &str, event: impl FnOnce()) {
    let (pods, _) = of(validated_pod, what, event);
    let stranded = pods.iter().filter(|pod| was_stranded(pod)).count();
    println!("{what}: {stranded} pods were stranded");
    assert!(10 * stranded <= pods.len(), "{what}: {stranded} of {} pods", pods.len());
}

fn annotations() -> Value {
    json!({"linkerd.io/proxy-version": "test"})
}

/// Runs `event` while the pods of `pod` start, all redirected. Returns the pods and the failures of the plugin.
fn of(
    pod: impl Fn(usize) -> Value + Sync,
    what: &str,
    event: impl FnOnce(),
) -> (Vec<Value>, Vec<String>) {
    let _namespace = pods::namespace(NAMESPACE);
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let (took, pods) = thread::scope(|scope| {
        let pods = scope.spawn(|| keep_starting(&pod, &over));
        let end = OnDrop(|| over.store(true, Ordering::Relaxed));
        event();
        let took = begin.elapsed();
        drop(end);
        (took, pods.join())
    });
    let pods = pods.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let ended = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
    let (redirected, not_redirected) = (ended("Succeeded"), ended("Failed"));
    let lost = pods.len() - redirected - not_redirected;
    // Kubelet retries.
    let failures = format!("events -n {NAMESPACE} --field-selector reason=FailedCreatePodSandBox");
    let failures = list(&failures);
    println!(
        "{what}, {took:.1?}: {} pods in {:.1?}: {redirected} redirected, {not_redirected} \
         not redirected, {lost} never started; {} kinds of failed tries",
        pods.len(),
        begin.elapsed(),
        failures.len()
    );
    let details = || kubectl(&format!("get events,pods -n {NAMESPACE}"));
    assert!(not_redirected == 0 && lost == 0, "{what}: {}", details());
    let messages = failures.iter().filter_map(|event| event["message"].as_str());
    let of_plugin = messages.filter(|message| message.contains("linkerd-cni"));
    (pods, of_plugin.map(str::to_owned).collect())
}

fn keep_starting(pod: &impl Fn(usize) -> Value, over: &AtomicBool) -> Vec<Value> {
    let all = || list(&format!("pods -n {NAMESPACE}"));
    let mut created = 0;
    while !over.load(Ordering::Relaxed) || created < LEAST {
        let waiting = all().iter().filter(|pod| !is_over(pod)).count();
        if waiting <= WAITING - BATCH && created < MOST {
            apply_all((created..created + BATCH).map(pod));
            created += BATCH;
        }
        thread::sleep(POLL);
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let pods = all();
        if pods.iter().all(is_over) || Instant::now() > end {
            return pods;
        }
        thread::sleep(POLL);
    }
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
}

/// Meshed pod whose app connects to an address that nobody has, and ends well if the connection
/// comes to its own listener, as Linkerd's validator does. The proxy itself has nothing to do.
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

/// The same with Linkerd's annotation and a network validator, which keeps a stranded pod from starting.
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
