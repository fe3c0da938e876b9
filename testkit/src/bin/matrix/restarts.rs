//! The job of the row `restarts`: reboots of the node, and pods whose containers restart together or never.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::active;
use crate::agent::{Paused, is_agent, process_of, rolled_out};
use crate::checks::Checks;
use crate::containers::{address_of, cached_add};
use crate::helm::Helm;
use crate::job::{install, uninstall};
use crate::kubectl::fed;
use crate::network;
use crate::node::Node;
use crate::pods::{self, Pods, kubectl};
use crate::until::{until, until_within};

/// Meshed pods of which none may run without redirect rules after a reboot.
const MESHED: [&str; 4] = ["one", "two", "three", "four"];
/// Interval of the audits, in seconds.
const AUDIT: u64 = 3;

/// Runs every check.
pub fn run(reboots: usize, checks: &mut Checks) {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::new();
    let pods = Pods::default();
    pods.create(&[job(pods::validated("validated", "1s")), job(pods::meshed("running"))]);
    until("the validator fails", || !failed_with_95("validated").is_empty());
    pods.until_ready("running");
    let responder = answer(&pods.ip("running"));
    assert_eq!(responder.as_deref(), Some("app-of-running"), "before the plugin is installed");
    let audits = format!("repairController.auditIntervalSeconds={AUDIT}");
    if !checks.run("install", || install(&helm, &["--set", &audits])) {
        return;
    }
    checks.run("the running pod of a Job that started before is repaired", || repaired(&pods));
    checks.run("a Job replaces its pod whose validator failed", replaced);
    checks.run("RestartAllContainers", || all_containers_restart(&pods));
    checks.run("the node reboots", || reboot(reboots, &pods));
    checks.run("uninstall", || uninstall(&node, &helm, &before));
}

/// A Job that never restarts a container, with `pod` as its template.
fn job(mut pod: Value) -> Value {
    pod["spec"]["restartPolicy"] = json!("Never");
    let name = &pod["metadata"]["name"];
    let metadata = json!({
        "labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"],
    });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": name},
        "spec": {"template": {"metadata": metadata, "spec": pod["spec"]}},
    })
}

/// An audit finds the pod, which has no validator.
fn repaired(pods: &Pods) -> String {
    let begin = Instant::now();
    let ip = pods.ip("running");
    until("the pod is redirected", || answer(&ip).as_deref() == Some("proxy-inbound"));
    let restarts = pods.field("running", ".status.containerStatuses[*].restartCount");
    assert_eq!((restarts, pods.ip("running")), ("0 0".to_owned(), ip), "the same containers");
    format!("in place, redirected after {:.1} s", begin.elapsed().as_secs_f64())
}

/// Kubernetes runs no container of such a pod again, so that no repair could help it.
fn replaced() -> String {
    let ready = || address_of("validated").and_then(|ip| answer(&ip));
    until_within(Duration::from_secs(300), "the Job's next pod is redirected", || {
        ready().as_deref() == Some("proxy-inbound")
    });
    let failed = failed_with_95("validated");
    format!("{} pods failed before the plugin was there; the next one is redirected", failed.len())
}

/// KEP-5532: when the app ends, kubelet runs all containers again in the netns that the pod has, also the validator.
fn all_containers_restart(pods: &Pods) -> String {
    let mut pod = pods::native_sidecar("restarted");
    let app = &mut pod["spec"]["containers"][0];
    app["restartPolicy"] = json!("Always");
    app["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0]},
    }]);
    pods.start(&[pod]);
    let container = |kind: &str| pods.field("restarted", &format!(".status.{kind}[0].containerID"));
    let (app, validator) = (container("containerStatuses"), container("initContainerStatuses"));
    let netns = cached_add("restarted").unwrap()["result"].clone();
    kill(process_of(app.split_once("://").unwrap().1).unwrap(), Signal::SIGTERM).unwrap();
    until("the validator ran again", || {
        let now = container("initContainerStatuses");
        !now.is_empty() && now != validator
    });
    pods.until_ready("restarted");
    assert_eq!(cached_add("restarted").unwrap()["result"], netns, "the pod's netns");
    assert_eq!(answer(&pods.ip("restarted")).as_deref(), Some("proxy-inbound"));
    assert_eq!(check("restarted"), "", "CHECK");
    thread::sleep(Duration::from_secs(3 * AUDIT));
    for reason in ["LinkerdCNIRulesMissing", "LinkerdCNINotConfigured"] {
        assert_eq!(pods::events("restarted", reason), "", "{reason}");
    }
    "validator and proxy ran again in the same netns; redirected, CHECK passes, no repair"
        .to_owned()
}

/// Runs CHECK as libcni does, with the cached result of ADD. Returns the plugin's output, which is empty if the pod has
/// its rules.
fn check(name: &str) -> String {
    let cached = cached_add(name).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut config = active::plugins().pop().unwrap();
    config["name"] = cached["networkName"].clone();
    config["cniVersion"] = cached["result"]["cniVersion"].clone();
    config["prevResult"] = cached["result"].clone();
    let args = cached["cniArgs"].as_array().unwrap().iter();
    let args: Vec<String> = args.map(|arg| text(&arg[0]) + "=" + &text(&arg[1])).collect();
    let mut interfaces = cached["result"]["interfaces"].as_array().unwrap().iter();
    let netns = interfaces.find_map(|one| one["sandbox"].as_str()).unwrap();
    let mut plugin = Command::new("/opt/cni/bin/linkerd-cni");
    plugin.envs([("CNI_COMMAND", "CHECK"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/opt/cni/bin")]);
    plugin.env("CNI_CONTAINERID", text(&cached["containerId"])).env("CNI_NETNS", netns);
    plugin.env("CNI_ARGS", args.join(";"));
    String::from_utf8(fed(&mut plugin, &config.to_string()).stdout).unwrap()
}

/// After each reboot the primary CNI has written its network config, and the agent is stopped until all pods have their
/// network. Until all pods are redirected, no app may respond in a proxy's place.
fn reboot(times: usize, pods: &Pods) -> String {
    kubectl(&["delete", "namespace", "running", "validated", "restarted", "--timeout=120s"]);
    pods.start(&MESHED.map(|name| pods::validated(name, "1s")));
    let uids = || MESHED.map(|name| pods.field(name, ".metadata.uid"));
    let (pods_before, mut longest) = (uids(), Duration::ZERO);
    for number in 1..=times {
        let (before, sandboxes) = (validations(), MESHED.map(sandbox));
        let apps_before = apps_since();
        // An agent waits 2 s for the lock, in which it is stopped.
        let net_dir = File::open("/etc/cni/net.d").unwrap();
        let lock = Flock::lock(net_dir, FlockArg::LockExclusive).expect("the net dir is locked");
        network::cluster("reboot");
        let boot = Instant::now();
        let mut agent = None;
        until("the agent runs", || {
            agent = testkit::pids().find(|pid| is_agent(*pid));
            agent.is_some()
        });
        let paused = Paused::process(Pid::from_raw(agent.unwrap()));
        drop(lock);
        until("all pods have their network", || {
            let now = MESHED.map(sandbox);
            now.iter().zip(&sandboxes).all(|(now, before)| now.is_some() && now != before)
        });
        drop(paused);
        until("all pods are redirected", || MESHED.iter().all(|name| is_redirected(name, number)));
        longest = longest.max(boot.elapsed());
        // Once for the new sandbox, and again after each failure.
        until("the validators failed, as the pods started before the plugin was chained", || {
            let now = validations();
            now.len() == 4 && now.iter().zip(&before).all(|(now, before)| *now >= before + 2)
        });
        // kubelet skips the validator of a pod whose app was created and not started when the node stopped:
        // https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/kuberuntime/kuberuntime_container.go#L1058
        // containerd still reports the app as created:
        // https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/restart.go#L346
        until("all apps run", || {
            let now = apps_since();
            now.len() == 4 && now.iter().zip(&apps_before).all(|(now, before)| now != before)
        });
    }
    for name in MESHED {
        pods.until_ready(name);
    }
    assert_eq!(uids(), pods_before, "the same pods");
    rolled_out();
    format!(
        "{times} times: {} stranded pods, no app responded without its proxy, all repaired in place, after at \
         most {:.0} s",
        times * MESHED.len(),
        longest.as_secs_f64()
    )
}

/// How often the validator of each meshed pod ran.
fn validations() -> Vec<u32> {
    let counts = of_meshed(".initContainerStatuses[0].restartCount");
    counts.iter().map(|count| count.parse().unwrap()).collect()
}

/// Since when the app of each meshed pod runs. Those that do not run are left out.
fn apps_since() -> Vec<String> {
    of_meshed(".containerStatuses[0].state.running.startedAt")
}

/// A field in the status of each meshed pod that has it.
fn of_meshed(field: &str) -> Vec<String> {
    let path = format!("jsonpath={{.items[*].status{field}}}");
    let fields =
        kubectl(&["get", "pods", "-A", "-l", "linkerd.io/control-plane-ns=linkerd", "-o", &path]);
    fields.split_whitespace().map(str::to_owned).collect()
}

/// ID of the pod's sandbox; `None` if the pod has no network.
fn sandbox(name: &str) -> Option<String> {
    Some(cached_add(name)?["containerId"].as_str()?.to_owned())
}

/// Whether the proxy of a pod responds for its app.
fn is_redirected(name: &str, number: usize) -> bool {
    let responder = address_of(name).and_then(|ip| answer(&ip));
    assert_ne!(responder, Some(format!("app-of-{name}")), "not redirected after reboot {number}");
    responder.as_deref() == Some("proxy-inbound")
}

/// Connects from the node to port 8080. Returns the name of the container that responds.
fn answer(ip: &str) -> Option<String> {
    let address: SocketAddr = format!("{ip}:8080").parse().ok()?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    line.split_whitespace().next().map(str::to_owned)
}

/// The exit codes of failed validators in a namespace, which are all 95.
fn failed_with_95(namespace: &str) -> Vec<String> {
    let exit = "jsonpath={.items[*].status.initContainerStatuses[0].state.terminated.exitCode}";
    let failed = "--field-selector=status.phase=Failed";
    let codes = kubectl(&["get", "pods", "-n", namespace, failed, "-o", exit]);
    let codes: Vec<String> = codes.split_whitespace().map(str::to_owned).collect();
    assert!(codes.iter().all(|code| code == "95"), "{codes:?}");
    codes
}
