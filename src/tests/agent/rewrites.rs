//! Other programs that write the same files.

use std::thread;
use std::time::{Duration, Instant};

use crate::agent_with_api::Scene;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

#[test]
fn each_conflist_rewrite_causes_one_write() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let mut took: Vec<Duration> = Vec::new();
    for turn in 0..300 {
        let text = CALICO.replace("1e3", &format!("{turn}e3"));
        let path = node.net(LIST);
        let begin = Instant::now();
        match turn % 2 {
            0 => node.replace(&path, text.as_bytes()),
            _ => std::fs::write(&path, &text).unwrap(),
        }
        until("the entry", || node.chained(LIST) && node.text(LIST).contains(&format!("{turn}e3")));
        took.push(begin.elapsed());
    }
    let writes = agent.metric("linkerd_cni_agent_conflist_writes_total");
    assert!(writes <= 301.0, "{writes} writes");
    took.sort();
    let (p50, p99) = (took[150], took[297]);
    println!("re-chained within {p50:?} (p50), {p99:?} (p99), {writes} writes");
    assert!(p99 < Duration::from_secs(1), "p50 {p50:?}, p99 {p99:?}");
    agent.until_ready();
}

#[test]
fn contention_over_two_conflists_delays_writes_and_posts_an_event() {
    let scene = Scene::start(&[("LINKERD_CNI_NODE_NAME", "node-1")]);
    let Scene { api, node, .. } = &scene;
    let names = [LIST, "20-other.conflist"];
    node.write(names[1], CALICO);
    until("the second conflist is chained", || node.chained(names[1]));
    let overwrite = || {
        for name in names.iter().filter(|name| node.chained(name)) {
            node.replace(&node.net(name), CALICO.as_bytes());
        }
    };
    let (mut status, mut why) = (0, String::new());
    until("the contention is named", || {
        overwrite();
        (status, why) = scene.agent.ready();
        names.iter().all(|name| why.contains(&format!("{name} keeps being overwritten")))
    });
    assert_eq!(status, 500);
    assert!(why.contains("cni.exclusive=false"), "{why}");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        overwrite();
        thread::sleep(Duration::from_millis(2));
    }
    assert!(scene.agent.metric("linkerd_cni_agent_conflist_writes_total") < 50.0);
    let mut events = api.events();
    events.sort_by_key(|event| event["note"].as_str().map(str::to_owned));
    assert_eq!(events.len(), names.len(), "{events:?}");
    for (event, name) in events.iter().zip(names) {
        assert_eq!(event["regarding"]["kind"], "Node");
        assert_eq!(event["regarding"]["name"], "node-1");
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["reportingController"], "linkerd2-cni-install");
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("cni.exclusive=false") && note.contains(name), "{note}");
    }
    // Once the other writer stops, the agent chains the plugin again.
    until("ready", || names.iter().all(|name| node.chained(name)) && scene.agent.ready().0 == 200);
}

#[test]
fn contention_over_each_file_is_logged_once_and_in_the_metric() {
    for (file, bad) in [
        ("etc/kubeconfig.json", "bad"),
        ("bin/linkerd-cni", "bad"),
        // The text lacks the plugin entry, because another agent's entry is no contention.
        ("etc/10-calico.conflist", CALICO),
    ] {
        let node = Node::with_calico();
        let agent = node.start_ready();
        let said = || agent.log().matches("keeps being overwritten by another writer").count();
        node.until_contended(file, bad, || said() > 0);
        assert_eq!(agent.metric("linkerd_cni_agent_contention_active"), 1.0, "{file}");
        assert_eq!(said(), 1, "{}", agent.log());
    }
}
