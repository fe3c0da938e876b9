//! The job of the row `restarts`: the node reboots, and the containers of pods restart all together
//! or not at all.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::cluster::agent::{Paused, is_agent, process_of, wait_for_rollout};
use testkit::cluster::containers::{address_of, answer_of, cached_add};
use testkit::cluster::helm::Helm;
use testkit::cluster::kubectl::kubectl;
use testkit::cluster::node::Node;
use testkit::cluster::pods::{self, Pods};
use testkit::cluster::{api, events};
use testkit::until::{until, until_found, until_within};

use crate::checks::Checks;
use crate::job::{install, uninstall};
use crate::network;

const MESHED: [&str; 4] = ["one", "two", "three", "four"];
/// Time between two audits of the repair controller, in seconds.
const AUDIT: u64 = 3;

pub fn run(reboots: usize, checks: &mut Checks) {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::new();
    let pods = Pods::default();
    pods.create(&[job(pods::validated("validated", "1s")), job(pods::meshed("running"))]);
    until("the validator fails", || !failed_with_95("validated").is_empty());
    pods.until_ready("running");
    let responder = answer_of(&pods.ip("running"));
    assert_eq!(responder.as_deref(), Some("app-of-running"), "before the plugin is installed");
    let audits = format!("repairController.auditIntervalSeconds={AUDIT}");
    if !checks.run("install", || install(&helm, &["--set", &audits])) {
        return;
    }
    checks.run("the running pod of a Job that started before is repaired", || {
        assert_running_pod_is_repaired(&pods)
    });
    checks.run("a Job replaces its pod whose validator failed", assert_failed_pod_is_replaced);
    checks.run("RestartAllContainers", || restart_all_containers(&pods));
    checks.run("the node reboots", || reboot(reboots, &pods));
    checks.run("uninstall", || uninstall(&node, &helm, &before));
}

/// A Job that never restarts a container, with `pod` as its template.
fn job(mut pod: Value) -> Value {
    pod["spec"]["restartPolicy"] = json!("Never");
    let name = &pod["metadata"]["name"];
    let pod_metadata = json!({
        "labels": pod["metadata"]["labels"],
        "annotations": pod["metadata"]["annotations"],
    });
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": name},
        "spec": {"template": {"metadata": pod_metadata, "spec": pod["spec"]}},
    })
}

/// Asserts that the pod `running` is repaired without a restart. The pod has no validator, so an
/// audit has to find it.
fn assert_running_pod_is_repaired(pods: &Pods) -> String {
    let begin = Instant::now();
    let ip = pods.ip("running");
    until("the pod is redirected", || answer_of(&ip).as_deref() == Some("proxy-inbound"));
    let pod = pods.pod("running");
    let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
    let restarts: Vec<&Value> = statuses.iter().map(|status| &status["restartCount"]).collect();
    assert_eq!(json!(restarts), json!([0, 0]), "the same containers");
    assert_eq!(pods.ip("running"), ip, "the same pod");
    format!("in place, redirected after {:.1} s", begin.elapsed().as_secs_f64())
}

/// Asserts that the Job replaces the pod whose validator failed. No repair could help that pod,
/// because Kubernetes runs none of its containers again.
fn assert_failed_pod_is_replaced() -> String {
    until_within(Duration::from_secs(300), "the Job's next pod is redirected", || {
        responder("validated").as_deref() == Some("proxy-inbound")
    });
    let failed = failed_with_95("validated");
    format!("{} pods failed before the plugin was there; the next one is redirected", failed.len())
}

/// Returns the name of the process that responds on port 8080 of the pod whose name starts with
/// `name`.
fn responder(name: &str) -> Option<String> {
    let ip = address_of(name)?;
    answer_of(&ip)
}

/// Restarts the containers of a pod with the action RestartAllContainers (KEP-5532). When its app
/// ends, kubelet runs all containers again, also the validator, in the netns that the pod has. The
/// rules are still in this netns, so nothing has to be repaired.
fn restart_all_containers(pods: &Pods) -> String {
    let mut pod = pods::native_sidecar("restarted");
    let app = &mut pod["spec"]["containers"][0];
    app["restartPolicy"] = json!("Always");
    app["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0]},
    }]);
    pods.start(&[pod]);
    let container = |kind: &str| {
        let pod = pods.pod("restarted");
        pod["status"][kind][0]["containerID"].as_str().unwrap_or_default().to_owned()
    };
    let app = container("containerStatuses");
    let validator = container("initContainerStatuses");
    let netns = cached_add("restarted").unwrap()["result"].clone();
    kill(process_of(app.split_once("://").unwrap().1).unwrap(), Signal::SIGTERM).unwrap();
    until("the validator ran again", || {
        let current = container("initContainerStatuses");
        !current.is_empty() && current != validator
    });
    pods.until_ready("restarted");
    assert_eq!(cached_add("restarted").unwrap()["result"], netns, "the pod's netns");
    assert_eq!(answer_of(&pods.ip("restarted")).as_deref(), Some("proxy-inbound"));
    thread::sleep(Duration::from_secs(3 * AUDIT));
    for reason in ["LinkerdCNIRulesMissing", "LinkerdCNINotConfigured"] {
        assert_eq!(events::messages("restarted", reason), "", "{reason}");
    }
    "validator and proxy ran again in the same netns; redirected, no repair".to_owned()
}

/// Reboots the node. The agent is stopped until the runtime has called ADD for all pods with the
/// config that the primary CNI has written, so that all pods are stranded and have to be repaired.
fn reboot(times: usize, pods: &Pods) -> String {
    kubectl("delete namespace running validated restarted --timeout=120s");
    pods.start(&MESHED.map(|name| pods::validated(name, "1s")));
    let uids = || MESHED.map(|name| pods.uid(name));
    let pods_before = uids();
    let mut longest = Duration::ZERO;
    for number in 1..=times {
        let restarts_before = validator_restarts();
        let sandboxes = MESHED.map(sandbox);
        let apps_before = app_start_times();
        // The agent waits up to 1 s for this lock before it writes. In this time it is stopped.
        let net_dir = File::open("/etc/cni/net.d").unwrap();
        let lock = Flock::lock(net_dir, FlockArg::LockExclusive).expect("the net dir is locked");
        network::cluster("reboot");
        let boot_time = Instant::now();
        let agent = until_found("the agent runs", || testkit::pids().find(|pid| is_agent(*pid)));
        let paused = Paused::process(Pid::from_raw(agent));
        drop(lock);
        until("all pods have their network", || {
            let current = MESHED.map(sandbox);
            current.iter().zip(&sandboxes).all(|(new, old)| new.is_some() && new != old)
        });
        drop(paused);
        until("all pods are redirected", || MESHED.iter().all(|name| is_redirected(name, number)));
        longest = longest.max(boot_time.elapsed());
        // kubelet runs the validators for the new sandbox, and again after each failure.
        until("the validators failed, as the pods started before the plugin was chained", || {
            let current = validator_restarts();
            current.len() == MESHED.len()
                && current.iter().zip(&restarts_before).all(|(new, old)| *new >= old + 2)
        });
        // Before Kubernetes 1.37, kubelet skips the validator of a pod whose app was created and not
        // started when the node stopped:
        // https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/kuberuntime/kuberuntime_container.go#L1058
        // containerd still reports the app as created:
        // https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/restart.go#L346
        until("all apps run", || {
            let current = app_start_times();
            current.len() == MESHED.len()
                && current.iter().zip(&apps_before).all(|(new, old)| new != old)
        });
    }
    for name in MESHED {
        pods.until_ready(name);
    }
    assert_eq!(uids(), pods_before, "the same pods");
    wait_for_rollout();
    format!(
        "{times} times: {} stranded pods, no app responded without its proxy, all repaired in \
         place, after at most {:.0} s",
        times * MESHED.len(),
        longest.as_secs_f64()
    )
}

/// Returns how often the validator of each meshed pod was restarted.
fn validator_restarts() -> Vec<u64> {
    let statuses = meshed_statuses();
    let validators = statuses.iter().map(|status| &status["initContainerStatuses"][0]);
    validators.filter_map(|validator| validator["restartCount"].as_u64()).collect()
}

/// Returns when the running app of each meshed pod was started. Apps that do not run are left out.
fn app_start_times() -> Vec<String> {
    let statuses = meshed_statuses();
    let apps = statuses.iter().map(|status| &status["containerStatuses"][0]["state"]["running"]);
    apps.filter_map(|app| Some(app["startedAt"].as_str()?.to_owned())).collect()
}

/// Returns the status of each meshed pod.
fn meshed_statuses() -> Vec<Value> {
    let pods = api::list("/api/v1/pods?labelSelector=linkerd.io/control-plane-ns=linkerd");
    pods.into_iter().map(|mut pod| pod["status"].take()).collect()
}

/// Returns the ID of the pod's sandbox.
fn sandbox(name: &str) -> Option<String> {
    Some(cached_add(name)?["containerId"].as_str()?.to_owned())
}

/// Whether the pod's proxy responds. Fails if the app responds without its proxy.
fn is_redirected(name: &str, reboot: usize) -> bool {
    let responder = responder(name);
    assert_ne!(responder, Some(format!("app-of-{name}")), "not redirected after reboot {reboot}");
    responder.as_deref() == Some("proxy-inbound")
}

/// Returns the failed pods. Fails if the validator of one of them has another exit code than 95.
fn failed_with_95(namespace: &str) -> Vec<Value> {
    let failed = api::list(&format!("{}?fieldSelector=status.phase=Failed", pods::path(namespace)));
    for pod in &failed {
        let validator = &pod["status"]["initContainerStatuses"][0]["state"]["terminated"];
        assert_eq!(validator["exitCode"], 95, "{pod}");
    }
    failed
}
