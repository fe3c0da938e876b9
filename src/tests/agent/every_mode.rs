//! Tests each chain mode together with other agents and installers. All tests use the same table of
//! modes.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::upstream_agent::unchained;

use crate::agent::Agent;
use crate::agent_with_api::in_parallel;
use crate::modes::{MODES, STANDALONE, Vars, configs_with};
use crate::node::{CONF, LIST, Node, TEMPLATE};
use crate::other_installers::with_appended;
use crate::until::until;
use crate::upstream::{self, KUBECONFIG, until_yielding};

const WRITES: &str = "linkerd_cni_agent_conflist_writes_total";
const OVERWRITTEN: &str = "keeps being overwritten";

/// Creates a node with `10-calico.conflist` and `20-net.conf`. Its agents use the chart's plugin
/// entry, and uninstall when they are stopped.
fn node() -> Node {
    let mut node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let template = TEMPLATE.replace("4143", "4143, \"agent-namespace\": \"linkerd-cni\"");
    node.vars.push(("CNI_NETWORK_CONFIG", template));
    node.vars.push(("LINKERD_CNI_RESYNC_SECONDS", "5".into()));
    node
}

/// Starts an agent, and waits until it is ready and has written the plugin entry to `files`.
fn start(node: &Node, vars: Vars, files: &[&str]) -> Agent {
    let mut agent = node.start_ready_with(vars);
    until("the files of the mode", || configs_with(node, "agent-namespace") == files);
    agent.until_ready();
    agent
}

fn assert_uninstalls(node: &Node, agent: &mut Agent) {
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert!(configs_with(node, "linkerd-cni").is_empty(), "{}", agent.log());
    let names: Vec<_> = node.tree().into_keys().collect();
    assert!(!names.iter().any(|name| name.contains("linkerd-cni")), "{names:?}");
}

#[test]
fn agent_of_each_mode_waits_for_upstreams_agent_and_then_replaces_its_entries() {
    let cases = MODES.iter().flat_map(|mode| [(mode, false), (mode, true)]);
    in_parallel(cases, |((vars, files), is_killed)| {
        let node = node();
        let upstream = upstream::start(&node, KUBECONFIG);
        let mut agent = node.start_with(vars);
        until_yielding(&agent);
        let writes = agent.metric(WRITES);
        thread::sleep(Duration::from_secs(1));
        // The agent may write each file once more, to detect whether upstream's agent still runs.
        assert!(agent.metric(WRITES) <= writes + files.len() as f64, "{}", agent.log());
        until_yielding(&agent);
        assert!(!agent.log().contains(OVERWRITTEN), "{}", agent.log());
        if is_killed {
            upstream.kill();
        } else {
            drop(upstream);
        }
        until("the agent's entries", || configs_with(&node, "agent-namespace") == *files);
        agent.until_ready();
        if !is_killed {
            until("no other entries", || configs_with(&node, "linkerd-cni") == *files);
        }
        assert_uninstalls(&node, &mut agent);
    });
}

/// Asserts that the agent is ready all the time, except for the moments in which it verifies what
/// it has written. `meanwhile` is called after each look.
fn assert_stays_ready(agent: &Agent, meanwhile: impl Fn()) {
    let (mut looks, mut not_ready) = (0, Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        let (status, why) = agent.ready();
        if status != 200 {
            not_ready.push(why);
        }
        looks += 1;
        meanwhile();
        thread::sleep(Duration::from_millis(5));
    }
    let last = not_ready.last();
    assert!(not_ready.len() * 5 < looks, "{}/{looks}: {last:?} {}", not_ready.len(), agent.log());
}

/// What an upstream agent reads in the ConfigMap if its container restarts during an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadTemplate {
    /// This agent's template, of which upstream's agent changes the format.
    Equal,
    /// This agent's template, which has upstream's format already, as the chart renders it.
    Identical,
    /// The template of another revision of this project's release.
    OtherRevision,
}

/// After `helm upgrade` from upstream, upstream's agent on a node has the ConfigMap of this release
/// if its container restarts before its pod is deleted.
#[test]
fn an_agent_of_each_mode_is_ready_beside_upstreams_that_reads_its_config_map() {
    let templates = [ReadTemplate::Equal, ReadTemplate::Identical, ReadTemplate::OtherRevision];
    let cases = MODES.iter().flat_map(|mode| templates.map(|template| (mode, template)));
    in_parallel(cases, |((vars, files), template)| {
        let mut node = node();
        let own = node.vars.iter_mut().find(|(name, _)| *name == "CNI_NETWORK_CONFIG").unwrap();
        let mut entry: Value = serde_json::from_str(&own.1).unwrap();
        entry.sort_all_objects();
        if template == ReadTemplate::Identical {
            own.1 = format!("{entry:#}");
        }
        if template == ReadTemplate::OtherRevision {
            entry["linkerd"]["incoming-proxy-port"] = json!(5143);
        }
        entry["kubernetes"]["kubeconfig"] = json!("etc/kubeconfig.json");
        let own_template = own.1.clone();
        let upstream = upstream::start_with_entry(&node, KUBECONFIG, entry);
        let mut agent = node.start_ready_with(vars);
        assert_stays_ready(&agent, || {});
        upstream.kill();
        let line = own_template.lines().find(|line| line.contains("4143")).unwrap().trim();
        until("the agent's entries", || {
            files.iter().all(|name| {
                // The agent formats the standalone config.
                let mark = if *name == STANDALONE { "4143" } else { line };
                node.text(name).contains(mark)
            })
        });
        agent.until_ready();
        assert_uninstalls(&node, &mut agent);
    });
}

/// Writes the plugin entry with other settings, as an agent that does not yield.
fn change_entry(node: &Node, name: &str, from: &str, to: &str) {
    let text = node.text(name);
    if text.contains(from) {
        node.replace(&node.net(name), text.replace(from, to).as_bytes());
    }
}

#[test]
fn an_agent_of_each_mode_stays_ready_while_its_entry_is_overwritten_by_one_that_works() {
    let changes = [("4143", "5143", true), ("etc/kubeconfig.json", "etc/other.json", false)];
    let cases = MODES.iter().flat_map(|mode| changes.map(|change| (mode, change)));
    in_parallel(cases, |((vars, files), (from, to, works))| {
        let node = node();
        let mut agent = start(&node, vars, files);
        let overwrite = || files.iter().for_each(|name| change_entry(&node, name, from, to));
        until("the contention is named", || {
            overwrite();
            let log = agent.log();
            files.iter().all(|name| log.contains(&format!("{name} {OVERWRITTEN}")))
        });
        let writes = agent.metric(WRITES);
        if works {
            assert_stays_ready(&agent, overwrite);
            // One write of each file in 10 s looks whether the other program still writes.
            assert!(agent.metric(WRITES) <= writes + files.len() as f64, "{}", agent.log());
        } else {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(2) {
                overwrite();
                assert_ne!(agent.ready().0, 200, "{}", agent.log());
                thread::sleep(Duration::from_millis(5));
            }
        }
        until("the agent's entries", || files.iter().all(|name| node.text(name).contains(from)));
        agent.until_ready();
        assert_uninstalls(&node, &mut agent);
    });
}

/// Istio's installer appends its plugin to the active conflist.
#[test]
fn agent_of_each_mode_is_ready_beside_istios_installer() {
    in_parallel(MODES, |(vars, files)| {
        let node = node();
        let mut agent = start(&node, vars, files);
        let (writes, passes) = (agent.metric(WRITES), "linkerd_cni_agent_reconcile_total");
        let before = agent.metric(passes);
        let appended = with_appended(node.json(LIST)).to_string();
        node.replace(&node.net(LIST), appended.as_bytes());
        until("a pass", || agent.metric(passes) > before + 1.0);
        agent.until_ready();
        assert_eq!((node.text(LIST), agent.metric(WRITES)), (appended, writes), "{}", agent.log());
        assert_eq!(configs_with(&node, "agent-namespace"), files);
        assert!(!agent.log().contains(OVERWRITTEN), "{}", agent.log());
        assert_uninstalls(&node, &mut agent);
        assert_eq!(node.types(LIST), ["calico", "portmap", "istio-cni"]);
    });
}

/// Removes the plugin entry or the standalone config, as another program might.
fn remove_entry(node: &Node, name: &str) {
    if name == STANDALONE {
        let _ = fs::remove_file(node.net(name));
    } else if node.chained(name) {
        let text = unchained(&node.text(name)).unwrap();
        node.replace(&node.net(name), text.as_bytes());
    }
}

#[test]
fn agent_of_each_mode_reports_contention_with_a_program_that_removes_its_entry() {
    in_parallel(MODES, |(vars, files)| {
        let node = node();
        let mut agent = start(&node, vars, files);
        let remove_entries = || {
            for name in files {
                remove_entry(&node, name);
            }
        };
        until("the contention is reported", || {
            remove_entries();
            let (status, why) = agent.ready();
            let is_named = |name: &&str| why.contains(&format!("{name} {OVERWRITTEN}"));
            status == 500 && files.iter().all(is_named)
        });
        let (begin, writes) = (Instant::now(), agent.metric(WRITES));
        while begin.elapsed() < Duration::from_secs(2) {
            remove_entries();
            thread::sleep(Duration::from_millis(2));
        }
        assert!(agent.metric(WRITES) <= writes + files.len() as f64, "{}", agent.log());
        // Once the other writer stops, the agent chains the plugin again.
        until("chained again", || configs_with(&node, "agent-namespace") == files);
        agent.until_ready();
        assert_uninstalls(&node, &mut agent);
    });
}

#[test]
fn older_agent_of_each_mode_yields_and_takes_over_from_the_newer_one() {
    let template = TEMPLATE.replace("4143", "5143");
    let pairs = MODES.iter().flat_map(|from| MODES.iter().map(move |to| (from, to)));
    in_parallel(pairs, |((from, from_files), (to, expected))| {
        let node = Node::with_calico();
        node.write("20-net.conf", CONF);
        let mut old = node.start_ready_with(from);
        let vars = [to, &[("CNI_NETWORK_CONFIG", &*template)][..]].concat();
        let mut new = node.start_ready_with(&vars);
        let is_right =
            || ["linkerd-cni", "5143"].iter().all(|text| configs_with(&node, text) == *expected);
        until("only the newer agent's entries", is_right);
        // Both agents have reconciled after the last write. From now on neither may write.
        let files = node.tree();
        for _ in 0..500 {
            assert!(is_right(), "{}", old.log());
            thread::sleep(Duration::from_millis(1));
        }
        assert!(node.tree() == files, "{}", new.log());
        for agent in [&old, &new] {
            assert_eq!(agent.ready().0, 200, "{}", agent.log());
            assert!(!agent.log().contains("overwritten"), "{}", agent.log());
        }
        assert_eq!(new.stop(), Some(0), "{}", new.log());
        until("only the older agent's entries", || {
            configs_with(&node, "linkerd-cni") == *from_files
                && configs_with(&node, "5143").is_empty()
        });
        old.until_ready();
    });
}
