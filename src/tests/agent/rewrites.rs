//! Tests other programs that rewrite the files of the agent.

use std::thread;
use std::time::{Duration, Instant};

use crate::agent_with_api::Scene;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

#[test]
fn each_conflist_rewrite_causes_one_write() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..300 {
        let value = format!("{number}e3");
        let text = CALICO.replace("1e3", &value);
        let path = node.net(LIST);
        let begin = Instant::now();
        if number % 2 == 0 {
            node.replace(&path, text.as_bytes());
        } else {
            std::fs::write(&path, &text).unwrap();
        }
        until("the entry", || node.chained(LIST) && node.text(LIST).contains(&value));
        times.push(begin.elapsed());
    }
    let writes = agent.metric("linkerd_cni_agent_conflist_writes_total");
    assert!(writes <= 301.0, "{writes} writes");
    times.sort();
    let (p50, p99) = (times[150], times[297]);
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
    until("the contention is reported", || {
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
fn contention_over_any_file_is_logged_once_and_shown_in_the_metric() {
    for (file, bad) in [
        ("etc/kubeconfig.json", "bad"),
        ("bin/linkerd-cni", "bad"),
        // Removing the plugin entry causes contention. Another agent's entry would not.
        ("etc/10-calico.conflist", CALICO),
    ] {
        let node = Node::with_calico();
        let agent = node.start_ready();
        let lines = || agent.log().matches("keeps being overwritten by another writer").count();
        node.until_contended(file, bad, || lines() > 0);
        assert_eq!(agent.metric("linkerd_cni_agent_contention_active"), 1.0, "{file}");
        assert_eq!(lines(), 1, "{}", agent.log());
    }
}
