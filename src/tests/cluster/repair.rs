//! Pods that started before the plugin was installed, and pods that lost their redirect rules.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::node::{Node, kill_component, netns_of, start_missing_components};
use crate::pods::{self, command, kubectl};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};

/// Interval of the audit, in seconds.
const PERIOD: u64 = 3;

#[test]
fn stranded_pods_are_reported_labelled_or_repaired_in_place_and_audited() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    pods.create(&[pods::validated("stranded", "1s")]);
    pods.until_stranded("stranded");
    let uid = pods.field("stranded", ".metadata.uid");

    helm.run("install", &[&set("report", 0)]);
    until("the Event on the pod", || {
        !pods::events("stranded", "LinkerdCNINotConfigured").is_empty()
    });
    let label = r".metadata.labels.linkerd\.io/cni-stranded";
    assert_eq!(pods.field("stranded", label), "");

    helm.run("upgrade", &[&set("label", 0)]);
    until("the label", || pods.field("stranded", label) == "true");

    helm.run("upgrade", &[&set("in-place", PERIOD)]);
    pods.until_ready("stranded");
    assert_eq!(pods.field("stranded", ".metadata.uid"), uid, "the same pod");
    pods.assert_answers("client", "stranded", "proxy-inbound");

    // Another pod, as the controller ignores a repaired pod for a minute.
    pods.start(&[pods::meshed("audited")]);
    let uid = pods.field("audited", ".metadata.uid");
    let ip = pods.ip("audited");
    pods.assert_answers("client", "audited", "proxy-inbound");
    let open = Open::to(&format!("{ip}:8080"));
    netns_of(&ip).flush_redirect();
    until_within(Duration::from_secs(20 * PERIOD), "the Event on the audited pod", || {
        !pods::events("audited", "LinkerdCNIRulesMissing").is_empty()
    });
    pods.assert_answers("client", "audited", "proxy-inbound");
    open.assert_open();
    assert_eq!(pods.field("audited", ".metadata.uid"), uid, "the same pod");
    pods_are_listed_from_the_cache_and_watched_for_random_times(node);
    scene.remove();
}

/// Checks the requests of all controllers that the test has started so far.
fn pods_are_listed_from_the_cache_and_watched_for_random_times(node: &Node) {
    let requests = node.requests_of("linkerd-cni-repair-controller/");
    let of = |verb: &str| {
        let events = requests.iter().filter(|event| event["verb"] == verb);
        let paths = events.filter_map(|event| event["requestURI"].as_str());
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    let (lists, watches) = (of("list"), of("watch"));
    assert!(lists.len() >= 3 && watches.len() >= 3, "{requests:#?}");
    for list in &lists {
        assert!(list.ends_with("&resourceVersion=0"), "{list}");
        assert!(!list.contains("limit="), "{list}");
    }
    let time = |path: &String| {
        let (_, rest) = path.split_once("timeoutSeconds=").expect(path);
        let (time, _) = rest.split_once('&').expect(path);
        time.parse::<u16>().expect(path)
    };
    let times: BTreeSet<u16> = watches.iter().map(time).collect();
    assert!(times.iter().all(|time| (1800..=3600).contains(time)), "{times:?}");
    println!("{} lists, watches of {times:?} s", lists.len());
}

#[test]
fn a_stranded_pod_of_a_statefulset_is_replaced_after_an_api_outage() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    // The validator fails while the API server is down, so kubelet reports it late.
    let pod = pods::held(pods::validated("stateful", "1s"));
    pods.create(&[pods::stateful(&pod)]);
    until("the pod runs", || !pods.ip("stateful").is_empty());
    let uid = pods.field("stateful", ".metadata.uid");
    helm.run("install", &[&set("delete", 0)]);
    node.without_api_server(|| {
        until("the pod is released", pods::release);
        until("the validator fails", || {
            let log = node.kubelet_log();
            log.contains("restarting failed container=linkerd-network-validator")
        });
    });

    until("the pod is replaced", || {
        let now = pods.field("stateful", ".metadata.uid");
        !now.is_empty() && now != uid
    });
    until("the new pod is released", pods::release);
    pods.until_ready("stateful");
    pods.assert_answers("client", "stateful", "proxy-inbound");
    scene.remove();
}

#[test]
fn the_startup_taint_stays_while_the_bin_dir_is_wrong_and_goes_after_the_self_test() {
    let scene = Scene::begin();
    let Scene { node, helm, .. } = &scene;
    let tainted_node = tainted();
    let taint = format!("--set=startupTaint={KEY}");
    let elsewhere = tempfile::tempdir().unwrap();
    let wrong = format!("--set=destCNIBinDir={}", elsewhere.path().display());
    helm.run("install", &[&taint, &wrong, "--wait=hookOnly"]);
    let log = || {
        let logs = "logs -n linkerd-cni -l k8s-app=linkerd-cni --tail=-1";
        let said = command(logs).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    until("the agent logs the reason", || log().contains("not chained"));
    thread::sleep(Duration::from_secs(2));
    assert!(is_tainted(), "{}", log());
    assert!(!node.is_chained(), "chained, the runtime could not start any pod");

    helm.run("upgrade", &[&taint]);
    until("the taint is removed", || !is_tainted());
    let log = log();
    let (passed, removed) = (log.find("self-test passed"), log.find("removed the startup taint"));
    assert!(passed.is_some() && passed < removed, "{log}");
    scene.remove();
    drop(tainted_node);
}

/// As on a Node object that was deleted and registered again: the kubelet registers its node only when it starts.
#[test]
fn the_startup_taint_that_is_back_when_the_kubelet_starts_is_removed_within_two_minutes() {
    let scene = Scene::begin();
    let Scene { helm, .. } = &scene;
    let tainted_node = tainted();
    helm.run("install", &[&format!("--set=startupTaint={KEY}")]);
    until("the taint is removed", || !is_tainted());
    let agent = ["get", "pods", "-n", "linkerd-cni", "-o", "jsonpath={.items[*].metadata.uid}"];
    let uid = kubectl(&agent);

    kill_component("kubelet");
    let again = tainted();
    start_missing_components();
    until_within(Duration::from_secs(120), "the taint is removed again", || !is_tainted());
    assert_eq!(kubectl(&agent), uid, "the same agent");
    drop((again, tainted_node));
    scene.remove();
}

#[test]
fn the_node_condition_is_withdrawn_within_two_seconds_of_a_fault_and_restored() {
    const CONDITION: &str = "linkerd-cni.linkerd.io/Ready";
    let scene = Scene::begin();
    let Scene { helm, .. } = &scene;
    let condition = |field: &str| {
        let path = format!("{{.items[0].status.conditions[?(@.type=='{CONDITION}')].{field}}}");
        kubectl(&["get", "node", "-o", &format!("jsonpath={path}")])
    };
    helm.run("install", &["--set=nodeCondition=true"]);
    until("the condition is true", || condition("status") == "True");
    let since = condition("lastTransitionTime");

    // The agent restores a deleted binary at once, so a directory takes its place.
    let binary = Path::new("/opt/cni/bin/linkerd-cni");
    let restore = OnDrop(|| {
        let _ = fs::remove_dir_all(binary);
    });
    fs::remove_file(binary).unwrap();
    until("the binary is restored", || binary.is_file());
    let begin = Instant::now();
    while fs::create_dir_all(binary.join("in-the-way")).is_err() {
        let _ = fs::remove_file(binary);
    }
    until("the condition is withdrawn", || condition("status") == "False");
    let elapsed = begin.elapsed();
    println!("withdrawn after {elapsed:.1?}: {}", condition("message"));
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
    assert!(condition("message").contains("binary"), "{}", condition("message"));
    assert_eq!(condition("reason"), "LinkerdCNINotReady");

    drop(restore);
    until("the condition is true again", || condition("status") == "True");
    assert_ne!(condition("lastTransitionTime"), since);
    let since = condition("lastTransitionTime");
    helm.run("upgrade", &["--set=nodeCondition=true,logLevel=debug"]);
    assert_eq!((condition("status"), condition("lastTransitionTime")), ("True".into(), since));

    // The DaemonSet alone: with the release, Helm deletes the agent's permissions, too.
    kubectl("delete daemonset linkerd-cni -n linkerd-cni --cascade=foreground --timeout=60s");
    assert_eq!(condition("status"), "");
    scene.remove();
}

const KEY: &str = "linkerd.io/cni-not-ready";

fn is_tainted() -> bool {
    kubectl("get node -o jsonpath={.items[0].spec.taints[*].key}").contains(KEY)
}

/// Sets the startup taint of the node, until the value is dropped.
fn tainted() -> OnDrop<impl FnMut()> {
    kubectl(&format!("taint node --all {KEY}=:NoSchedule"));
    OnDrop(|| {
        let _ = command(&format!("taint node --all {KEY}-")).output();
    })
}

/// An open connection with continuous writes, as the server closes a connection that is silent for a second. After a
/// reset, the second write fails.
struct Open {
    stop: Arc<AtomicBool>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl Open {
    fn to(address: &str) -> Open {
        let mut stream = TcpStream::connect(address).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                stream.write_all(b"still here")?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        Open { stop, writer }
    }

    /// Asserts that the connection is still open after some more writes.
    fn assert_open(self) {
        thread::sleep(Duration::from_millis(300));
        self.stop.store(true, Ordering::Relaxed);
        let written = self.writer.join().unwrap();
        assert!(written.is_ok(), "the open connection was closed: {written:?}");
    }
}

/// Sets the repair mode, and the interval of audits in seconds.
pub fn set(mode: &str, audit: u64) -> String {
    format!(
        "--set=repairController.enabled=true,repairController.mode={mode},\
         repairController.auditIntervalSeconds={audit}"
    )
}
