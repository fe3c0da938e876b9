//! Other programs that write the same files.

use std::thread;
use std::time::{Duration, Instant};

use crate::agent_with_api::Scene;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

#[test]
fn each_of_a_thousand_conflist_rewrites_causes_one_write() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let mut took: Vec<Duration> = Vec::new();
    for turn in 0..1000 {
        let text = CALICO.replace("1e3", &format!("{turn}e3"));
        let path = node.net(LIST);
        let begin = Instant::now();
        match turn % 2 {
            0 => node.replace(&path, text.as_bytes()),
            _ => std::fs::write(&path, &text).unwrap(),
        }
        while !(node.chained(LIST) && node.text(LIST).contains(&format!("{turn}e3"))) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}", agent.log());
            thread::sleep(Duration::from_micros(300));
        }
        took.push(begin.elapsed());
    }
    let writes = agent.metric("linkerd_cni_agent_conflist_writes_total");
    assert!(writes <= 1001.0, "{writes} writes");
    took.sort();
    let (p50, p99) = (took[500], took[990]);
    println!("re-chained within {p50:?} (p50), {p99:?} (p99), {writes} writes");
    assert!(p99 < Duration::from_secs(1), "p50 {p50:?}, p99 {p99:?}");
    agent.until_ready();
}

#[test]
fn contention_is_named_with_its_remedy_and_delays_writes() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let overwrite = || {
        if node.chained(LIST) {
            node.replace(&node.net(LIST), CALICO.as_bytes());
        }
    };
    let (mut status, mut why) = (0, String::new());
    until("the contention is named", || {
        overwrite();
        (status, why) = agent.ready();
        why.contains("cni.exclusive=false")
    });
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        overwrite();
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(status, 500);
    assert!(why.contains(LIST), "{why}");
    assert!(agent.metric("linkerd_cni_agent_conflist_writes_total") < 25.0);
    assert_eq!(agent.metric("linkerd_cni_agent_contentions_total"), 1.0);
    let warnings = agent.log().matches("cni.exclusive=false").count();
    assert_eq!(warnings, 1, "{}", agent.log());
    // Once the other one stops, all is well again.
    until("the entry", || node.chained(LIST));
    agent.until_ready();
}

#[test]
fn contention_for_two_conflists_names_both() {
    let node = Node::new();
    let names = [LIST, "20-other.conflist"];
    names.iter().for_each(|name| node.write(name, CALICO));
    let agent = node.start_ready();
    until("both conflists are named", || {
        for name in names.iter().filter(|name| node.chained(name)) {
            node.replace(&node.net(name), CALICO.as_bytes());
        }
        let why = agent.ready().1;
        names.iter().all(|name| why.contains(&format!("{name} keeps being overwritten")))
    });
}

#[test]
fn contention_for_each_file_of_the_agent_is_counted() {
    for file in ["etc/kubeconfig.json", "bin/linkerd-cni", "etc/10-calico.conflist"] {
        let node = Node::with_calico();
        let agent = node.start_ready();
        let path = node.root().join(file);
        let good = std::fs::read(&path).unwrap();
        // For the conflist: without the plugin entry. Another agent's entry is no contention.
        let bad = if file.ends_with(".conflist") { CALICO } else { "bad" };
        until("the contention is logged", || {
            if std::fs::read(&path).is_ok_and(|found| found == good) {
                node.replace(&path, bad.as_bytes());
            }
            agent.log().contains("keeps being overwritten by another writer")
        });
        assert_eq!(agent.metric("linkerd_cni_agent_contentions_total"), 1.0, "{file}");
    }
}

#[test]
fn contention_is_reported_in_one_event_on_the_node() {
    let name = ("LINKERD_CNI_NODE_NAME", "node-1");
    let Scene { api, node, agent: _agent } = Scene::start(&[name]);
    let events = || api.asked("POST", "/apis/events.k8s.io/v1/namespaces/default/events");
    until("the Event", || {
        if node.chained(LIST) {
            node.replace(&node.net(LIST), CALICO.as_bytes());
        }
        events() > 0
    });
    assert_eq!(events(), 1);
    let event = &api.events()[0];
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], "node-1");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reportingController"], "linkerd2-cni-install");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("cni.exclusive=false") && note.contains(LIST));
}
