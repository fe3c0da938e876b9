//! Pods that were there before the plugin, and pods that lost their rules.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::helm::Helm;
use crate::node::{Node, netns_of};
use crate::pods::{self, Pods, kubectl};
use crate::until::{until, until_within};

/// How often the audit looks, in seconds.
const PERIOD: u64 = 3;

#[test]
fn stranded_pods_are_told_about_labelled_or_repaired_in_place_and_audited() {
    let node = Node::here();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    pods.start(&[pods::unmeshed("client")]);
    pods.create(&[pods::validated("stranded", "1s")]);
    until_stranded(&pods, "stranded");
    let uid = pods.field("stranded", ".metadata.uid");

    helm.run("install", &[&set("report", 0)]);
    until("the Event on the pod", || {
        let events = ["get", "events", "-n", "stranded", "-o", "name"];
        let reason = ["--field-selector", "reason=LinkerdCNINotConfigured"];
        !kubectl(&[&events[..], &reason].concat()).is_empty()
    });
    let label = r".metadata.labels.linkerd\.io/cni-stranded";
    assert_eq!(pods.field("stranded", label), "");

    helm.run("upgrade", &[&set("label", 0)]);
    until("the label", || pods.field("stranded", label) == "true");

    helm.run("upgrade", &[&set("in-place", PERIOD)]);
    pods.until_ready("stranded");
    assert_eq!(pods.field("stranded", ".metadata.uid"), uid, "the same pod");
    let ip = pods.ip("stranded");
    let answer = || pods.connect("client", "app", &format!("{ip}:8080"));
    assert!(answer().starts_with("proxy-inbound"), "{}", answer());

    // Another pod, as one that was just repaired is left alone for a minute.
    pods.start(&[pods::meshed("audited")]);
    let uid = pods.field("audited", ".metadata.uid");
    let ip = pods.ip("audited");
    let answer = || pods.connect("client", "app", &format!("{ip}:8080"));
    assert!(answer().starts_with("proxy-inbound"), "{}", answer());
    let open = Open::to(&format!("{ip}:8080"));
    let chain = ["ip", "linkerd-cni", "PROXY_INIT_REDIRECT"];
    netns_of(&ip).must(&[&["nft", "flush", "chain"], &chain[..]].concat());
    until_within(Duration::from_secs(2 * PERIOD), "the Event on it", || {
        let events = ["get", "events", "-n", "audited", "-o", "name"];
        let reason = ["--field-selector", "reason=LinkerdCNIRulesMissing"];
        !kubectl(&[&events[..], &reason].concat()).is_empty()
    });
    assert!(answer().starts_with("proxy-inbound"), "{}", answer());
    open.ends_well();
    assert_eq!(pods.field("audited", ".metadata.uid"), uid, "the same pod");
    pods_are_listed_from_the_cache_and_watched_for_random_times(&node);

    drop(pods);
    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

/// Checks the audit log for all controllers that the scene has started so far.
#[allow(clippy::print_stdout, reason = "shows what the API server was asked")]
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
    assert!(times.iter().all(|time| (300..=600).contains(time)), "{times:?}");
    println!("{} lists, watches of {times:?} s", lists.len());
}

#[test]
fn a_stranded_pod_of_a_statefulset_is_made_anew_though_the_api_server_was_away() {
    let node = Node::here();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    pods.start(&[pods::unmeshed("client")]);
    // Fails while the API server is away, which then is told of it late.
    let pod = pods::after("30s", pods::validated("stranded", "1s"));
    pods.create(&[pods::stateful(&pod)]);
    until("the pod runs", || !pods.ip("stranded").is_empty());
    let uid = pods.field("stranded", ".metadata.uid");
    helm.run("install", &[&set("delete", 0)]);
    let waits = ".status.initContainerStatuses[0].state.running.startedAt";
    assert_ne!(pods.field("stranded", waits), "", "it has not failed yet");
    node.without_api_server(|| {
        until("the validator's end", || {
            let log = node.kubelet_log();
            log.contains("restarting failed container=linkerd-network-validator")
        });
    });

    until("another pod", || {
        let now = pods.field("stranded", ".metadata.uid");
        !now.is_empty() && now != uid
    });
    pods.until_ready("stranded");
    let answer = pods.connect("client", "app", &format!("{}:8080", pods.ip("stranded")));
    assert!(answer.starts_with("proxy-inbound"), "{answer}");

    drop(pods);
    helm.uninstall();
}

#[test]
fn the_startup_taint_stays_where_the_bin_dir_is_wrong_and_goes_once_the_plugin_is_proven() {
    let node = Node::here();
    let helm = Helm::with_local_repository();
    let tainted_node = Tainted::node();
    let is_tainted = || {
        let keys = ["get", "node", "-o", "jsonpath={.items[0].spec.taints[*].key}"];
        kubectl(&keys).contains(KEY)
    };
    let taint = format!("--set=startupTaint={KEY}");
    let elsewhere = tempfile::tempdir().unwrap();
    let wrong = format!("--set=destCNIBinDir={}", elsewhere.path().display());
    let before = node.files();
    helm.run("install", &[&taint, &wrong, "--wait=hookOnly"]);
    let log = || {
        let logs = ["logs", "-n", "linkerd-cni", "-l", "k8s-app=linkerd-cni"];
        let said = pods::command(&logs).arg("--tail=-1").output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    until("the reason", || log().contains("not chained"));
    thread::sleep(Duration::from_secs(2));
    assert!(is_tainted(), "{}", log());
    assert!(!node.is_chained(), "the runtime would start no pod any more");

    helm.run("upgrade", &[&taint]);
    until("the taint is off", || !is_tainted());
    let log = log();
    let (proven, off) = (log.find("self-test passed"), log.find("removed the startup taint"));
    assert!(proven.is_some() && proven < off, "{log}");
    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
    drop(tainted_node);
}

const KEY: &str = "linkerd.io/cni-not-ready";

/// The node with the startup taint, which is off at the end also on a panic.
struct Tainted;

impl Tainted {
    fn node() -> Self {
        kubectl(&["taint", "node", "--all", &format!("{KEY}=:NoSchedule")]);
        Tainted
    }
}

impl Drop for Tainted {
    fn drop(&mut self) {
        let off = ["taint", "node", "--all", &format!("{KEY}-")];
        let _ = std::process::Command::new("kubectl").args(off).output();
    }
}

/// A connection that is written to all the time, as the server ends one that is silent
/// for a second. A reset would fail the write after the next.
struct Open {
    over: Arc<AtomicBool>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl Open {
    fn to(address: &str) -> Open {
        let mut stream = TcpStream::connect(address).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let writer = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(b"still here")?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        Open { over, writer }
    }

    /// Some writes later it is still open.
    fn ends_well(self) {
        thread::sleep(Duration::from_millis(300));
        self.over.store(true, Ordering::Relaxed);
        let written = self.writer.join().unwrap();
        assert!(written.is_ok(), "the open connection was cut: {written:?}");
    }
}

fn set(mode: &str, audit: u64) -> String {
    format!(
        "--set=repairController.enabled=true,repairController.mode={mode},\
         repairController.auditIntervalSeconds={audit}"
    )
}

fn until_stranded(pods: &Pods, name: &str) {
    let exit = ".status.initContainerStatuses[0].lastState.terminated.exitCode";
    until("the validator fails", || pods.field(name, exit) == "95");
}
