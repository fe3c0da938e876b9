//! Tests the node's copy of its pods: what the agent publishes for the plugin, and what it reports
//! about the copy.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::pod::Decision;
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::pod::skip::SkipReason;
use linkerd2_cni::pod_copy::{self, PublishedPod};
use serde_json::{Value, json};
use testkit::chart::yaml;
use testkit::cni::upstream_entry;

use crate::agent_with_api::Scene;
use crate::api::{Api, DaemonSetState, delete_pod};
use crate::node::Node;
use crate::until::{until, until_within};

const NAMESPACE: &str = "/api/v1/namespaces/shop";
const API_SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";

/// Scenes in which the agent watches the pods of its node.
impl Scene {
    /// Starts an agent on a node with these pods, and waits until the copy is complete.
    fn watching(pods: &[Value]) -> Scene {
        let watched = Scene::watching_after(pods, |_| {});
        watched.until_kept();
        watched
    }

    /// Starts an agent on a node with these pods, after `prepare` has changed the API server.
    fn watching_after(pods: &[Value], prepare: impl FnOnce(&Api)) -> Scene {
        let api = Api::start();
        api.state().pods = pods.to_vec();
        prepare(&api);
        let mut node = Node::with_api(&api);
        node.vars.push(("LINKERD_CNI_RUN_DIR", node.root().join("run").display().to_string()));
        node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
        node.vars.push(("CNI_NETWORK_CONFIG", upstream_entry().to_string()));
        Scene::start_on(api, node, &[])
    }

    fn run_dir(&self) -> PathBuf {
        self.node.root().join("run")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.run_dir().join("pods").join(name)
    }

    fn published(&self, name: &str, uid: &str) -> Option<PublishedPod> {
        let [namespace, name, uid] = ["shop", name, uid].map(str::to_owned);
        pod_copy::read(&self.run_dir(), &PodRef { namespace, name, uid }).unwrap()
    }

    fn read(&self, name: &str, uid: &str) -> Option<Decision<PodFacts>> {
        match self.published(name, uid)? {
            PublishedPod::Decision(decision) => Some(*decision),
            PublishedPod::TooLarge | PublishedPod::OtherFormat { .. } => None,
        }
    }

    /// Changes the pod's file to that of an agent of another version.
    fn change_format(&self, uid: &str) {
        let text = fs::read_to_string(self.file(uid)).unwrap();
        let mut copy: Value = serde_json::from_str(&text).unwrap();
        copy["format"] = json!("1-of-another-version");
        self.node.replace(&self.file(uid), copy.to_string().as_bytes());
    }

    /// Waits until the metric counts these numbers of pods with a path around the proxy, by reason.
    fn until_counted(&self, counts: &[(&str, f64)]) {
        for (reason, pods) in counts {
            let metric = format!("linkerd_cni_agent_bypassing_pods{{reason=\"{reason}\"}}");
            until(reason, || self.agent.metric(&metric) == *pods);
        }
    }

    /// Returns the published facts about a meshed pod.
    fn facts(&self, name: &str, uid: &str) -> PodFacts {
        match self.read(name, uid) {
            Some(Decision::Redirect(facts)) => facts,
            other => panic!("{name}: {other:?}\n{}", self.agent.log()),
        }
    }

    fn is_kept(&self) -> bool {
        pod_copy::is_kept(&self.run_dir())
    }

    fn until_kept(&self) {
        until("the copy is kept", || self.is_kept());
    }

    /// Sends an added pod to the watch, and waits for its file. All earlier events have then been
    /// applied.
    fn add(&self, name: &str, uid: &str) {
        let is_added = || self.read(name, uid).is_some();
        until("the added pod", || {
            // Send the event again. On a busy machine, the agent may have ended the watch that got
            // the last one.
            if !is_added() {
                self.api.send("ADDED", &unmeshed(name, uid));
                thread::sleep(Duration::from_millis(100));
            }
            is_added()
        });
    }

    /// Returns the keys in the published file of a meshed pod.
    fn published_keys(&self, uid: &str) -> Vec<String> {
        let text = fs::read_to_string(self.file(uid)).unwrap();
        let copy: Value = serde_json::from_str(&text).unwrap();
        copy["decision"]["redirect"].as_object().unwrap().keys().cloned().collect()
    }

    /// Returns the part of `/status` about the copy, without the key `bypasses`.
    fn status(&self) -> Value {
        let body: Value = serde_json::from_str(&self.agent.get("/status").1).unwrap_or_default();
        let mut copy = body["podCopy"].clone();
        copy.as_object_mut().map(|copy| copy.remove("bypasses"));
        copy
    }

    /// Returns the names of the files of the copy, without the lock.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir().join("pods")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }
}

/// Returns the pod `kind` of `pods.yaml`, with this name and this UID.
fn pod(kind: &str, name: &str, uid: &str) -> Value {
    let mut pod = yaml(include_str!("pods.yaml"))[kind].take();
    (pod["metadata"]["name"], pod["metadata"]["uid"]) = (name.into(), uid.into());
    pod
}

fn unmeshed(name: &str, uid: &str) -> Value {
    pod("unmeshed", name, uid)
}

fn injected(name: &str, uid: &str) -> Value {
    pod("injected", name, uid)
}

/// Returns an injected pod with this list of inbound ports to skip.
fn injected_with(name: &str, uid: &str, ports: &str) -> Value {
    let mut pod = injected(name, uid);
    pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] = ports.into();
    pod
}

/// Returns the mirror pod of a static pod.
fn mirror(name: &str, uid: &str, static_uid: &str) -> Value {
    let mut pod = unmeshed(name, uid);
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": static_uid});
    pod
}

/// Adds the namespace and the Service of the API server to the API server's objects.
fn with_objects(api: &Api) {
    for (path, object) in yaml(include_str!("pods.yaml"))["objects"].as_object().unwrap() {
        api.answer(path, 200, &object.to_string());
    }
}

const NO_PROXY: Option<Decision<PodFacts>> = Some(Decision::Skip(SkipReason::NoProxy));

#[test]
fn all_listed_pods_are_published_and_status_updates_cause_no_requests() {
    let mut on_host = unmeshed("proxy", "u-host");
    on_host["spec"]["hostNetwork"] = json!(true);
    let mut ended = unmeshed("done", "u-done");
    ended["status"] = json!({"phase": "Succeeded"});
    let pods = [
        injected("web", "u-web"),
        pod("manual", "debug", "u-debug"),
        pod("manual", "debug-2", "u-debug-2"),
        pod("control plane", "destination", "u-destination"),
        unmeshed("job", "u-job"),
        mirror("etcd-node-1", "u-mirror", "0static"),
        // This pod claims the UID of another pod.
        mirror("false-mirror", "u-false", "u-web"),
        on_host,
        ended,
        injected_with("long", "u-long", &"25,".repeat(2000)),
    ];
    let watched = Scene::watching_after(&pods, with_objects);
    watched.until_kept();

    let web = watched.facts("web", "u-web");
    assert_eq!(web.annotations["config.linkerd.io/skip-inbound-ports"], "25");
    assert_eq!((web.uid.as_str(), web.proxy.uid, web.annotations.len()), ("u-web", Some(2103), 1));
    for (name, uid) in [("debug", "u-debug"), ("debug-2", "u-debug-2")] {
        let debug = watched.facts(name, uid).annotations;
        assert_eq!(debug["config.linkerd.io/skip-outbound-ports"], "3306", "{name}");
        assert_eq!(debug.len(), 1, "{name}");
    }
    let ports = watched.facts("destination", "u-destination").api_ports;
    assert_eq!(ports.iter().map(|range| range.first).collect::<Vec<_>>(), [443, 6443]);
    assert_eq!(watched.read("job", "u-job"), NO_PROXY);
    assert_eq!(watched.read("etcd-node-1", "0static"), NO_PROXY);
    let ordinary = ["0static", "u-debug", "u-debug-2", "u-destination", "u-false", "u-job"];
    assert_eq!(watched.names(), [&ordinary[..], &["u-long", "u-web"]].concat());
    assert_eq!(watched.published("long", "u-long"), Some(PublishedPod::TooLarge));
    watched.until_counted(&[("unknown", 1.0)]);

    let asked = || (watched.api.asked("GET", NAMESPACE), watched.api.asked("GET", API_SERVICE));
    assert_eq!(asked(), (1, 1), "{:?}", watched.api.requests());
    for pod in pods.iter().filter(|pod| pod["status"].is_null()) {
        let mut changed = pod.clone();
        changed["status"] = json!({"phase": "Running"});
        changed["metadata"]["resourceVersion"] = json!("9");
        watched.api.modify(&changed);
    }
    watched.add("last", "u-last");
    assert_eq!(asked(), (1, 1), "{:?}", watched.api.requests());
    let problem = "pod shop/long is not published: its annotations and containers need more than 4096 bytes, \
         so the plugin asks the API server when the pod starts";
    let wanted = json!({"published": 8, "current": true, "problem": problem});
    until("status", || watched.status() == wanted);
    assert_eq!(watched.agent.metric("linkerd_cni_agent_published_pods"), 8.0);
    assert_eq!(watched.agent.metric("linkerd_cni_agent_pod_copy_current"), 1.0);
}

#[test]
fn existing_pods_with_a_path_around_the_proxy_are_counted_by_reason() {
    let mut shared = injected("shared", "u-shared");
    shared["spec"]["containers"][0]["securityContext"] =
        json!({"runAsUser": 2103, "privileged": true});
    let watched =
        Scene::watching(&[shared.clone(), injected("web", "u-web"), unmeshed("job", "u-job")]);
    watched.until_counted(&[("proxy-user", 1.0), ("net-admin", 1.0), ("sys-admin", 1.0)]);
    // Without a securityContext, the user is that of the image.
    watched.until_counted(&[("image-user", 1.0), ("set-user-id", 2.0), ("root-container", 0.0)]);
    watched.until_counted(&[("skip-inbound-ports", 2.0), ("ipv6", 0.0), ("ipv6-link-local", 2.0)]);
    // The file contains only what the plugin reads.
    let keys = ["uid", "annotations", "proxy", "apiPorts", "earlyContainers", "appContainers"];
    assert_eq!(watched.published_keys("u-shared"), keys);
    let mut web = injected("web", "u-web");
    web["status"] = json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.7"}, {"ip": "fd00::7"}]});
    watched.api.modify(&web);
    watched.until_counted(&[("ipv6", 1.0), ("ipv6-link-local", 1.0)]);
    // The status of the container contains the user of the image.
    web["status"]["containerStatuses"] = json!([{"name": "app", "user": {"linux": {"uid": 0}}}]);
    watched.api.modify(&web);
    watched.until_counted(&[("image-user", 0.0), ("root-container", 1.0), ("ipv6", 1.0)]);
    web["spec"]["ephemeralContainers"] = json!([{"name": "debugger", "securityContext":
        {"runAsUser": 1000, "capabilities": {"add": ["NET_RAW"]}}}]);
    watched.api.modify(&web);
    watched.until_counted(&[("net-raw", 2.0)]);
    let status: Value = serde_json::from_str(&watched.agent.get("/status").1).unwrap();
    assert_eq!(status["podCopy"]["bypasses"]["net-raw"], 2, "{status}");
    watched.api.send("DELETED", &shared);
    watched.until_counted(&[("proxy-user", 0.0), ("net-raw", 1.0), ("skip-inbound-ports", 1.0)]);
}

#[test]
fn invalid_annotation_of_a_running_pod_hides_no_other_path_around_the_proxy() {
    let mut web = injected("web", "u-web");
    web["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let watched = Scene::watching(&[web.clone()]);
    watched.until_counted(&[("net-admin", 1.0), ("skip-inbound-ports", 1.0), ("unknown", 0.0)]);
    web["metadata"]["annotations"]["config.linkerd.io/skip-subnets"] =
        json!("10.0.0.0/8,not a subnet");
    watched.api.modify(&web);
    watched.until_counted(&[("unknown", 1.0), ("net-admin", 1.0), ("net-raw", 1.0)]);
    watched.until_counted(&[("skip-inbound-ports", 1.0), ("skip-inbound-subnets", 1.0)]);
}

#[test]
fn file_and_metrics_of_a_completed_pod_are_removed_immediately() {
    let web = injected("web", "u-web");
    let etcd = mirror("etcd-node-1", "u-mirror", "0static");
    let watched = Scene::watching(&[web.clone(), etcd.clone()]);
    watched.until_counted(&[("skip-inbound-ports", 1.0)]);
    for (mut pod, phase) in [(web, "Succeeded"), (etcd, "Failed")] {
        pod["status"] = json!({"phase": phase});
        watched.api.modify(&pod);
    }
    watched.add("last", "u-last");
    assert_eq!(watched.names(), ["u-last"]);
    watched.until_counted(&[("skip-inbound-ports", 0.0)]);
    until("status", || watched.status() == json!({"published": 1, "current": true}));
}

#[test]
fn frequent_changes_of_a_pod_cause_few_requests_and_the_last_change_is_published() {
    let mut debug = pod("manual", "debug", "u-debug");
    let watched = Scene::watching_after(&[debug.clone()], with_objects);
    watched.until_kept();
    let asked = || watched.api.asked("GET", NAMESPACE);
    let before = asked();
    for port in 1..100 {
        debug["metadata"]["annotations"] =
            json!({"config.linkerd.io/skip-inbound-ports": port.to_string()});
        watched.api.modify(&debug);
    }
    watched.add("last", "u-last");
    let sent = asked() - before;
    assert!((1..=6).contains(&sent), "{sent} requests");
    // Until then the plugin asks the API server, and the paths around the proxy are unknown.
    assert_eq!(watched.published("debug", "u-debug"), None);
    watched.until_counted(&[("unknown", 1.0)]);
    until_within(Duration::from_secs(60), "the last change", || {
        watched.api.bookmark();
        thread::sleep(Duration::from_secs(1));
        watched.published("debug", "u-debug").is_some()
    });
    let annotations = watched.facts("debug", "u-debug").annotations;
    assert_eq!(annotations["config.linkerd.io/skip-inbound-ports"], "99");
    watched.until_counted(&[("unknown", 0.0)]);
}

#[test]
fn file_of_a_deleted_pod_is_removed_and_a_new_pod_of_its_name_gets_its_own() {
    let old = injected("web-0", "u-old");
    let etcd = mirror("etcd-node-1", "u-mirror", "0static");
    let watched = Scene::watching(&[old.clone(), etcd.clone()]);
    assert_eq!(watched.names(), ["0static", "u-old"]);
    watched.api.send("ADDED", &unmeshed("web-0", "u-new"));
    watched.api.send("DELETED", &old);
    watched.api.send("DELETED", &etcd);
    watched.add("last", "u-last");
    assert_eq!(watched.names(), ["u-last", "u-new"]);
    assert_eq!(watched.read("web-0", "u-new"), NO_PROXY);
    watched.api.modify(&injected_with("web-0", "u-new", "26"));
    watched.add("more", "u-more");
    let annotations = watched.facts("web-0", "u-new").annotations;
    assert_eq!(annotations["config.linkerd.io/skip-inbound-ports"], "26");
}

#[test]
fn restarted_agent_replaces_damaged_files_and_removes_stale_ones() {
    let [web, gone] = [injected("web", "u-web"), injected("gone", "u-gone")];
    let mut watched = Scene::watching(&[web.clone(), gone]);
    watched.agent.kill();
    assert!(!watched.is_kept());
    assert_eq!(watched.names(), ["u-gone", "u-web"]);
    // The temporary file is kept: another agent may be writing it.
    let temporary = ".linkerd-cni.1.2.3.tmp";
    for name in ["u-web", "foreign.txt", ".hidden", temporary] {
        fs::write(watched.file(name), r#"{"namespace":"#).unwrap();
    }
    // If one file cannot be replaced, the agent reports its path, and publishes the other pods.
    fs::create_dir_all(watched.file("u-blocked/x")).unwrap();
    let blocked = injected("blocked", "u-blocked");
    watched.api.state().pods = vec![blocked.clone(), web.clone(), injected("xx", "u-xx")];
    let watches = watched.api.watches().len();
    watched.agent = watched.node.start_ready();
    until("a watch", || watched.api.watches().len() > watches);
    assert!(watched.is_kept());
    assert_eq!(watched.names(), [temporary, "u-blocked", "u-web", "u-xx"]);
    watched.facts("web", "u-web");
    until("the problem", || watched.status()["problem"].to_string().contains("pods/u-blocked"));
    assert!(watched.agent.log().contains("pod shop/blocked is not published"));
    assert_eq!(watched.status()["published"], 2);
    fs::remove_dir_all(watched.file("u-blocked")).unwrap();
    watched.api.modify(&blocked);

    fs::write(watched.file("u-web"), "").unwrap();
    watched.api.modify(&web);
    watched.add("last", "u-last");
    watched.facts("blocked", "u-blocked");
    watched.facts("web", "u-web");
    fs::remove_dir_all(watched.run_dir().join("pods")).unwrap();
    assert!(!watched.is_kept());
    watched.api.bookmark();
    watched.until_kept();
    assert_eq!(watched.names(), ["u-blocked", "u-web", "u-xx"]);
}

/// Files of another version are those of the agent before an upgrade, or before a rollback.
#[test]
fn a_file_of_another_version_is_replaced_unless_a_newer_agent_runs() {
    let watched = Scene::watching(&[injected("web", "u-web")]);
    let decision = watched.read("web", "u-web");
    assert!(matches!(decision, Some(Decision::Redirect(_))), "{decision:?}");
    let other = Some(PublishedPod::OtherFormat { is_meshed: true });
    let update = |version: &str| {
        let mut web = injected("web", "u-web");
        web["metadata"]["resourceVersion"] = json!(version);
        watched.api.modify(&web);
    };
    watched.change_format("u-web");
    assert_eq!(watched.published("web", "u-web"), other);
    update("8");
    until("the file is replaced", || watched.read("web", "u-web") == decision);

    let socket = watched.run_dir().join("records.sock");
    let beside = watched.run_dir().join("newer.sock");
    let _newer_agent = UnixDatagram::bind(&beside).unwrap();
    fs::rename(&beside, &socket).unwrap();
    watched.change_format("u-web");
    update("9");
    watched.add("last", "u-last");
    assert_eq!(watched.published("web", "u-web"), other);
}

#[test]
fn denied_watch_is_reported_once_with_the_remedy() {
    let deny = |api: &Api| api.state().pods_status = 403;
    let watched = Scene::watching_after(&[injected("web", "u-web")], deny);
    until("the remedy", || watched.status()["problem"].to_string().contains("ClusterRole"));
    // The agent tries several times, because an API server may deny requests while it starts.
    let asked = || watched.api.asked("GET", "/api/v1/pods?");
    until_within(Duration::from_secs(180), "five requests", || asked() == 5);
    thread::sleep(Duration::from_secs(40));
    assert_eq!(asked(), 5);
    assert!(!watched.is_kept());
    let log = watched.agent.log();
    assert_eq!(log.matches("may not list and watch pods").count(), 1, "{log}");
    assert_eq!(watched.agent.ready().0, 200, "{log}");
}

#[test]
fn copy_remains_valid_after_a_broken_watch_but_not_during_an_outage() {
    let watched = Scene::watching(&[injected("web", "u-web")]);
    watched.add("last", "u-last");
    watched.api.crash();
    until("the copy is not kept", || !watched.is_kept());
    watched.facts("web", "u-web");
    until("status", || watched.status()["current"] == false);
    watched.api.up();
    watched.until_kept();
    watched.add("next", "u-next");
    let watches = watched.api.watches().len();
    watched.api.break_watches();
    until("another watch", || watched.api.watches().len() > watches || !watched.is_kept());
    assert!(watched.is_kept());
}

#[test]
fn pod_is_not_published_if_a_request_for_its_facts_fails() {
    let mut pods = [
        injected("web", "u-web"),
        pod("manual", "debug", "u-debug"),
        pod("control plane", "destination", "u-destination"),
    ];
    let fail = |api: &Api| {
        api.answer(NAMESPACE, 403, "{}").answer(API_SERVICE, 500, "{}");
    };
    let watched = Scene::watching_after(&pods, fail);
    watched.until_kept();
    assert_eq!(watched.names(), ["u-web"]);
    let log = watched.agent.log();
    assert!(log.contains("pod shop/debug is not published"), "{log}");
    assert!(log.contains("pod shop/destination is not published"), "{log}");
    with_objects(&watched.api);
    // Until the next list, the agent repeats the requests only if the pod changes.
    let asked = watched.api.asked("GET", NAMESPACE);
    watched.api.modify(&pods[1]);
    watched.add("last", "u-last");
    assert_eq!(watched.api.asked("GET", NAMESPACE), asked);
    for pod in &mut pods[1..] {
        pod["spec"]["containers"][0]["name"] = json!("renamed");
        watched.api.modify(pod);
    }
    watched.add("then", "u-then");
    watched.facts("debug", "u-debug");
    watched.facts("destination", "u-destination");
    until("status", || watched.status() == json!({"published": 5, "current": true}));
    // The changed pod requires a request. This fails, so the outdated file is removed.
    watched.api.answer(NAMESPACE, 500, "{}");
    let mut changed = pods[1].clone();
    changed["metadata"]["annotations"] = json!({"config.linkerd.io/skip-inbound-ports": "1"});
    watched.api.modify(&changed);
    watched.add("more", "u-more");
    assert_eq!(watched.read("debug", "u-debug"), None);
}

#[test]
fn copy_is_removed_by_uninstall_and_if_the_agent_does_not_watch_pods() {
    for daemon_set in [DaemonSetState::Exists, DaemonSetState::BeingDeleted] {
        let mut watched = Scene::watching(&[injected("web", "u-web")]);
        watched.api.state().daemon_set = daemon_set;
        delete_pod(&watched.api);
        assert_eq!(watched.agent.stop(), Some(0), "{}", watched.agent.log());
        let is_kept = daemon_set == DaemonSetState::Exists;
        assert_eq!(watched.file("u-web").exists(), is_kept, "{}", watched.agent.log());
        assert_eq!(watched.run_dir().join("pods").exists(), is_kept);
        assert!(!watched.is_kept());
        let before = watched.api.asked("GET", "/api/v1/pods?");
        watched.agent = watched.node.start_ready_with(&[("LINKERD_CNI_WATCH_PODS", "false")]);
        assert!(!watched.run_dir().join("pods").exists());
        let listed = watched.api.asked("GET", "/api/v1/pods?");
        assert_eq!((listed, watched.status()), (before, Value::Null));
    }
}

#[test]
fn memory_of_the_agent_does_not_grow_with_the_pods_of_its_node() {
    let large_pod = |number: usize, annotation: usize| {
        let mut pod = injected(&format!("web-{number}"), &format!("u-{number}"));
        let env: Vec<Value> = (0..4)
            .map(|index| json!({"name": format!("A_{index}"), "value": "x".repeat(5000)}))
            .collect();
        pod["spec"]["containers"][0]["env"] = json!(env);
        pod["metadata"]["annotations"]["example.com/config"] = json!("x".repeat(annotation));
        pod
    };
    // Returns the peak memory of an agent, in kB.
    let peak = |pods: Vec<Value>| {
        let watched = Scene::watching(&pods);
        assert_eq!(watched.names().len(), pods.len());
        watched.add("last", "u-last");
        let status = fs::read_to_string(format!("/proc/{}/status", watched.agent.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let few = peak(vec![large_pod(0, 10)]);
    // The lists have 5 MB and 2.5 MB. On a busy machine, the API server of the test would need too
    // long for larger ones.
    for (pods, annotation) in [(250, 10), (10, 250_000)] {
        let more = peak((0..pods).map(|number| large_pod(number, annotation)).collect());
        let more = more.saturating_sub(few);
        println!("{pods} pods of 20 kB, annotation of {annotation} B: {more} kB above {few} kB");
        assert!(more <= 1000, "{annotation}: {more} kB more than {few} kB");
    }
}
