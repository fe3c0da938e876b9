//! Batches of meshed pods that start while something else happens. Each pod connects at once; its exit code tells
//! whether the connection was redirected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kubectl::{apply, kubectl, list, succeeds};
use super::pods::{self, container};

/// Number of pods created at a time.
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

/// Runs `event` while pods start, and asserts that every pod was redirected and that no ADD of the plugin failed.
pub fn during(what: &str, event: impl FnOnce()) {
    without_failures(what, |_| annotations(), event);
}

/// The same, and every second pod is hand-made, without an annotation: an agent has to keep its copy all the time.
pub fn of_any_origin(what: &str, event: impl FnOnce()) {
    let of_number =
        |number: usize| if number.is_multiple_of(2) { json!({}) } else { annotations() };
    without_failures(what, of_number, event);
}

/// Runs `event` while pods with the annotations of their number start.
fn without_failures(what: &str, of_number: impl Fn(usize) -> Value + Sync, event: impl FnOnce()) {
    let pods = |namespace: &str, number| validating_pod(namespace, number, &of_number(number));
    let (_, failures) = of(pods, what, event);
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

/// Runs `event` while pods with a network validator start, and asserts that the apps of all were redirected. Until this
/// chart's agent answers the write of upstream's, which takes away the plugin, the first try of a pod may fail, and a
/// tenth of the pods may be stranded: the repair controller has to mend them.
pub fn with_retries(what: &str, event: impl FnOnce()) {
    let (pods, _) = of(validated_pod, what, event);
    let stranded = pods.iter().filter(|pod| was_stranded(pod)).count();
    println!("{what}: {stranded} pods were stranded");
    assert!(10 * stranded <= pods.len(), "{what}: {stranded} of {} pods", pods.len());
}

/// Annotations of a pod with a proxy.
fn annotations() -> Value {
    json!({"linkerd.io/proxy-version": "test"})
}

/// Runs `event` while pods start that `pod` makes for a namespace and a number, asserts that every pod was redirected,
/// and prints the figures. Returns the pods and the failures of the plugin.
fn of(
    pod: impl Fn(&str, usize) -> Value + Sync,
    what: &str,
    event: impl FnOnce(),
) -> (Vec<Value>, Vec<String>) {
    let namespace = Namespace::new();
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let (took, pods) = thread::scope(|scope| {
        let pods = scope.spawn(|| namespace.keep_starting(&pod, &over));
        let end = SetOnDrop(&over);
        event();
        let took = begin.elapsed();
        drop(end);
        (took, pods.join())
    });
    let pods = pods.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let ended = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
    let (redirected, not_redirected) = (ended("Succeeded"), ended("Failed"));
    let lost = pods.len() - redirected - not_redirected;
    let mut failures = namespace.failed_sandboxes();
    println!(
        "{what}, {took:.1?}: {} pods in {:.1?}: {redirected} redirected, {not_redirected} \
         not redirected, {lost} never started; {} kinds of failed tries",
        pods.len(),
        begin.elapsed(),
        failures.len()
    );
    let details = || kubectl(&["get", "events,pods", "-n", &namespace.0]);
    assert!(not_redirected == 0 && lost == 0, "{what}: {}", details());
    failures.retain(|message| message.contains("linkerd-cni"));
    (pods, failures)
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A namespace. Dropping the value deletes it and its pods.
struct Namespace(String);

impl Namespace {
    fn new() -> Namespace {
        let name = "burst".to_owned();
        kubectl(&format!("create namespace {name}"));
        pods::until_account(&name);
        Namespace(name)
    }

    /// Starts pods until `over`, and at least [`LEAST`] of them. Returns all pods after their end.
    fn keep_starting(&self, pod: &impl Fn(&str, usize) -> Value, over: &AtomicBool) -> Vec<Value> {
        let mut created = 0;
        while !over.load(Ordering::Relaxed) || created < LEAST {
            let waiting = self.pods().iter().filter(|pod| !is_over(pod)).count();
            if waiting <= WAITING - BATCH && created < MOST {
                let pods = (created..created + BATCH).map(|number| pod(&self.0, number));
                apply(
                    &json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()}),
                );
                created += BATCH;
            }
            thread::sleep(POLL);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let pods = self.pods();
            if pods.iter().all(is_over) || Instant::now() > end {
                return pods;
            }
            thread::sleep(POLL);
        }
    }

    fn pods(&self) -> Vec<Value> {
        list(&format!("pods -n {}", self.0))
    }

    /// Messages of failures to set up a pod's network; kubelet retries.
    fn failed_sandboxes(&self) -> Vec<String> {
        let failed = format!("events -n {} --field-selector reason=FailedCreatePodSandBox", self.0);
        let messages = list(&failed).into_iter();
        messages.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        succeeds(&format!("delete namespace {} --timeout=60s", self.0));
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
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"),
            "namespace": namespace,
            "annotations": annotations,
        },
        "spec": {
            "initContainers": [proxy],
            "containers": [app],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
        },
    })
}

/// The same with Linkerd's annotation and a network validator, which keeps a stranded pod from starting.
fn validated_pod(namespace: &str, number: usize) -> Value {
    let mut pod = validating_pod(namespace, number, &annotations());
    let validator = container("linkerd-network-validator", 65534, &pods::validation("10s"));
    pod["spec"]["initContainers"].as_array_mut().unwrap().insert(0, validator);
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod
}

/// Whether the validator of the pod has failed, which comes first.
fn was_stranded(pod: &Value) -> bool {
    pod["status"]["initContainerStatuses"][0]["restartCount"].as_u64() != Some(0)
}
