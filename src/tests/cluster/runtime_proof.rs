//! A container runtime that cannot run the plugin: pods start again, and the correction chains the
//! plugin again. Pods that wait for something else: the plugin stays chained.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::child::must;
use testkit::write_program;

use crate::agent::{agent, agent_pods};
use crate::helm::NAMESPACE;
use crate::outage::{count_redirected, create_all, injector_annotations};
use crate::pods::{self, Pods};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};
use crate::watcher::Watcher;
use crate::{api, events};

const BIN_DIR: &str = "/opt/cni/bin";
const PLUGIN: &str = "/opt/cni/bin/linkerd-cni";
/// Directory that is not the runtime's, and has links with the names of its plugins.
const OTHER_DIR: &str = "/opt/linkerd-cni-other";
const RECORD: &str = "/run/linkerd-cni/withdrawn";

/// Longest time until an unmeshed pod starts on a node whose runtime cannot run the plugin.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Longest time from the correction until the plugin is chained.
const CHAINED_WITHIN: Duration = Duration::from_secs(30);

/// Starts an unmeshed pod, and asserts that it starts although the runtime cannot run the plugin.
fn assert_starts_without_plugin(scene: &Scene, name: &str) {
    let begin = Instant::now();
    scene.pods.create(&[pods::unmeshed(name)]);
    until_within(STARTED_WITHIN, "the pod starts", || {
        scene.pods.pod(name)["status"]["phase"] == "Running"
    });
    println!("{:>6.1?} {name} starts without the plugin", begin.elapsed());
    assert!(!scene.node.is_chained() && Path::new(RECORD).exists(), "{name}");
    until("the Event", || events::messages("default", "LinkerdCNIWithdrawn").contains(name));
    until("the agent is not ready", || {
        agent_pods().iter().any(|agent| api::condition(agent, "Ready") == "False")
    });
}

/// Asserts that the plugin is chained soon after `begin`, and redirects a pod.
fn assert_chained_again(scene: &Scene, begin: Instant, name: &str) {
    until_within(CHAINED_WITHIN, "the plugin is chained again", || scene.node.is_chained());
    println!("{:>6.1?} chained again", begin.elapsed());
    assert!(begin.elapsed() < CHAINED_WITHIN + Duration::from_secs(30));
    let pods = Pods::default();
    pods.start(&[pods::unmeshed("client"), pods::meshed(name)]);
    pods.assert_answers("client", name, "proxy-inbound");
    assert!(!Path::new(RECORD).exists());
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn pods_start_on_a_node_whose_runtime_cannot_run_the_plugin() {
    let scene = Scene::begin();
    a_bin_dir_that_is_not_the_runtimes(&scene);
    a_plugin_that_the_kernel_does_not_start(&scene, "noexec", |file| {
        must(Command::new("mount").args(["-o", "remount,bind,noexec", file]));
    });
    a_plugin_that_the_kernel_does_not_start(&scene, "processor", |file| {
        // The header of a program for a processor that no node has (EM_M32).
        let mut bytes = fs::read(file).unwrap();
        bytes[18..20].copy_from_slice(&[1, 0]);
        fs::write(file, bytes).unwrap();
    });
    scene.remove();
}

fn a_bin_dir_that_is_not_the_runtimes(scene: &Scene) {
    fs::create_dir_all(OTHER_DIR).unwrap();
    let _remove = OnDrop(|| {
        let _ = fs::remove_dir_all(OTHER_DIR);
    });
    for plugin in fs::read_dir(BIN_DIR).unwrap() {
        let plugin = plugin.unwrap();
        symlink(plugin.path(), Path::new(OTHER_DIR).join(plugin.file_name())).unwrap();
    }
    scene.helm.run("install", &[&format!("--set=destCNIBinDir={OTHER_DIR}")]);
    assert_starts_without_plugin(scene, "other-dir");
    let begin = Instant::now();
    scene.helm.run("upgrade", &[&format!("--set=destCNIBinDir={BIN_DIR}")]);
    assert_chained_again(scene, begin, "corrected");
}

/// Mounts a changed copy of the plugin over the file of the node. The agent does not see that,
/// because the mount does not reach its container.
fn a_plugin_that_the_kernel_does_not_start(scene: &Scene, name: &str, change: fn(&str)) {
    // Each installation is new for the agent, because it has another plugin entry.
    scene.helm.run("upgrade", &[&format!("--set=excludeNamespaces={{kube-system,{name}}}")]);
    let copy = format!("/opt/linkerd-cni-{name}");
    fs::copy(PLUGIN, &copy).unwrap();
    must(Command::new("mount").args(["--bind", &copy, PLUGIN]));
    let unmount = OnDrop(|| {
        let _ = Command::new("umount").arg(PLUGIN).status();
        let _ = fs::remove_file(&copy);
    });
    change(PLUGIN);
    assert_starts_without_plugin(scene, name);
    drop(unmount);
    let begin = Instant::now();
    fs::remove_file(RECORD).unwrap();
    assert_chained_again(scene, begin, &format!("{name}-corrected"));
}

/// Namespace of the meshed pods of a round.
const MESHED: &str = "healthy";
/// Number of meshed pods of a round, which are created at once.
const PODS: usize = 50;
/// Number of meshed pods of all rounds.
const STARTS: usize = 500;
/// Longest time until the pods of a round have started.
const ROUND_BUDGET: Duration = Duration::from_secs(300);
/// Time for which the primary CNI fails.
const PRIMARY_CNI_FAILS: Duration = Duration::from_secs(20);

/// Plugin of the primary CNI.
const BRIDGE: &str = "/opt/cni/bin/bridge";
/// Link to the plugin of the primary CNI, in the same file system.
const BRIDGE_LINK: &str = "/opt/cni/linkerd-cni-bridge";
/// File that replaces the plugin of the primary CNI by a rename.
const NEW_BRIDGE: &str = "/opt/cni/linkerd-cni-new-bridge";

/// Starts the meshed pods of a round while pods wait for something else than the plugin.
type Round = fn(&Scene);

const ROUNDS: [(&str, Round); 3] = [
    ("a primary CNI that takes 30 s", slow_primary_cni),
    ("a primary CNI that fails", failing_primary_cni),
    ("missing volumes, a full node, a missing image", pods_that_never_start),
];

/// A round takes a minute on two processors.
#[test]
#[ignore = "takes 10 minutes: scripts/test --matrix runs it"]
fn plugin_stays_chained_while_pods_wait_for_something_else() {
    let scene = Scene::installed(&[]);
    // The other test of this file has left some.
    for event in events::list("default", "LinkerdCNIWithdrawn") {
        let name = event["metadata"]["name"].as_str().unwrap();
        api::delete(&format!("/api/v1/namespaces/default/events/{name}"));
    }
    fs::hard_link(BRIDGE, BRIDGE_LINK).unwrap();
    let unlink = OnDrop(|| {
        let _ = fs::remove_file(BRIDGE_LINK);
    });
    let begin = Instant::now();
    for round in 0..STARTS / PODS {
        let (name, start_pods) = ROUNDS[round % ROUNDS.len()];
        // Another plugin entry, which the runtime has not used yet.
        let excluded = format!("--set=excludeNamespaces={{kube-system,round-{round}}}");
        scene.helm.run("upgrade", &[&excluded]);
        until("the chain is provisional", || chain_state() == "provisional");
        let namespace = pods::namespace(MESHED);
        let watcher = Watcher::start();
        start_pods(&scene);
        watcher.finish().assert_always_installed(name);
        assert!(!Path::new(RECORD).exists(), "{name}");
        assert_eq!(events::messages("default", "LinkerdCNIWithdrawn"), "", "{name}");
        until("the chain is proven", || chain_state() == "proven");
        println!("{:>6.0?} {} pods were redirected", begin.elapsed(), (round + 1) * PODS);
        drop(namespace);
    }
    drop(unlink);
    scene.remove();
}

/// Returns what the agent's `/status` says of the chain.
fn chain_state() -> String {
    let agent = agent().pod;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{agent}:9991/proxy/status");
    api::get(&path)["runtime"]["chain"].as_str().unwrap_or_default().to_owned()
}

/// Creates the meshed pods of a round. Half of them have the injector's annotations.
fn create_meshed_pods() {
    let annotations = [injector_annotations(), json!({})];
    create_all(MESHED, (0..PODS).map(|number| annotations[number % 2].clone()));
}

fn until_all_are_redirected() {
    until_within(ROUND_BUDGET, "all pods are redirected", || count_redirected(MESHED) == PODS);
}

/// Waits until the agent has listed Events again, after the first `lists` times. Asserts that it
/// has found no evidence.
fn assert_events_show_nothing(scene: &Scene, lists: usize) {
    until("the agent lists Events", || scene.node.event_lists() > lists);
    assert_eq!(chain_state(), "provisional");
}

/// Replaces the primary CNI's plugin by a script until the returned value is dropped. For ADD the
/// script runs a command first.
fn run_before_bridge(command: &str) -> OnDrop<impl FnMut()> {
    let script = format!(
        "#!/bin/sh\nif [ \"$CNI_COMMAND\" = ADD ]; then {command}; fi\nexec {BRIDGE_LINK} \"$@\"\n"
    );
    write_program(NEW_BRIDGE, script);
    fs::rename(NEW_BRIDGE, BRIDGE).unwrap();
    OnDrop(|| {
        fs::hard_link(BRIDGE_LINK, NEW_BRIDGE).unwrap();
        fs::rename(NEW_BRIDGE, BRIDGE).unwrap();
    })
}

fn slow_primary_cni(scene: &Scene) {
    let lists = scene.node.event_lists();
    let _restore = run_before_bridge("sleep 30");
    create_meshed_pods();
    assert_events_show_nothing(scene, lists);
    until_all_are_redirected();
}

/// The primary CNI's error has the words with which the runtime says that it does not find the
/// plugin.
fn failing_primary_cni(scene: &Scene) {
    let lists = scene.node.event_lists();
    let message = r#"failed to find plugin "linkerd-cni" in path [/opt/cni/bin]"#;
    let error = json!({"cniVersion": "1.0.0", "code": 100, "msg": message});
    let command = format!("echo '{error}'; exit 1");
    let restore = run_before_bridge(&command);
    let begin = Instant::now();
    create_meshed_pods();
    assert_events_show_nothing(scene, lists);
    thread::sleep(PRIMARY_CNI_FAILS.saturating_sub(begin.elapsed()));
    let events = events::messages(MESHED, "FailedCreatePodSandBox");
    let failure = format!(r#"plugin type="bridge" failed (add): {message}"#);
    assert!(events.contains(&failure), "{} bytes of other Events", events.len());
    assert_eq!(chain_state(), "provisional");
    drop(restore);
    until_all_are_redirected();
}

fn pods_that_never_start(scene: &Scene) {
    let lists = scene.node.event_lists();
    let pods = Pods::default();
    let mut no_secret = pods::unmeshed("no-secret");
    mount(&mut no_secret, &json!({"name": "data", "secret": {"secretName": "missing"}}));
    let mut no_config = pods::meshed("no-config");
    mount(&mut no_config, &json!({"name": "data", "configMap": {"name": "missing"}}));
    let mut no_room = pods::meshed("no-room");
    // The kubelet rejects the pod. The scheduler would not assign it to a full node.
    no_room["spec"]["nodeName"] = api::list("/api/v1/nodes")[0]["metadata"]["name"].clone();
    no_room["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    pods.create(&[no_secret, no_config, no_room]);
    until("the pod is rejected", || pods.pod("no-room")["status"]["reason"] == "OutOfcpu");
    assert_events_show_nothing(scene, lists);
    // The pod has a sandbox, so that the chain may be proven from now on.
    let mut no_image = pods::meshed("no-image");
    no_image["spec"]["containers"][0]["image"] = json!("registry.invalid/missing:1");
    no_image["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    pods.create(&[no_image]);
    create_meshed_pods();
    until_all_are_redirected();
    for (name, reason) in
        [("no-secret", "FailedMount"), ("no-config", "FailedMount"), ("no-image", "Failed")]
    {
        until("the Event on the pod", || !events::list(name, reason).is_empty());
        assert_eq!(pods.pod(name)["status"]["phase"], "Pending", "{name}");
    }
}

/// Mounts the volume in the pod's first container.
fn mount(pod: &mut Value, volume: &Value) {
    pod["spec"]["volumes"] = json!([volume]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
}
