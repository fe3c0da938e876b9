//! `helm upgrade` from upstream's chart to this project's chart, and `helm rollback` to upstream's.
//! As with the default update strategy, two agents run side by side on the node.
//!
//! Upstream's image is not available here. The DaemonSet runs a pod that does nothing, and a
//! stand-in for upstream's agent runs until that pod's process ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::upstream_agent::UpstreamAgent;

use crate::agent::{agent, find_agent, is_ready, wait_for_rollout};
use crate::burst;
use crate::restore_time::RestoreTime;
use crate::scene::Scene;
use crate::until::{until_found, until_within};
use crate::upstream::Program;
use crate::upstream_agent::{self, active_conflist, create_account};
use crate::watcher::Watcher;

/// Longest gap without the times to restore [`FILES`]. An agent that misses the change restores the
/// entry seconds later.
const PASSES: Duration = Duration::from_millis(200);
/// Plugin binary, kubeconfig and network config; the binary has megabytes and counts twice. On
/// SIGTERM, upstream's agent removes binary, kubeconfig and entry within milliseconds, and announces
/// it to nobody. This project's agent then restores them in this order. It waits until each is on
/// the disk before it writes the next, so that the network config never names a missing file, also
/// after a power failure. So the gap depends on the disk: 16 to 63 ms on a quiet machine, and up to
/// 1.2 s beside other clusters and a compiler.
const FILES: u32 = 4;
const STATE: &str = "/etc/cni/net.d/.linkerd-cni-state";
const WAIT: Duration = Duration::from_secs(60);

/// Waits for upstream's pod, and starts the stand-in for upstream's agent, which runs as long as
/// the process of that pod. `other_pod` is an agent's pod that may still run.
fn start_upstream_agent(other_pod: Option<&str>) -> UpstreamAgent {
    let pod = until_found("upstream's pod runs", || {
        find_agent().filter(|agent| Some(agent.pod.as_str()) != other_pod)
    });
    let process = format!("/proc/{}/exe", pod.pid);
    upstream_agent::start_until(move || Path::new(&process).symlink_metadata().is_err())
}

/// Watches for gaps, and measures what the machine needs meanwhile to restore a file.
struct Gaps {
    watcher: Watcher,
    restore_time: RestoreTime,
}

impl Gaps {
    fn watch() -> Gaps {
        Gaps { watcher: Watcher::start(), restore_time: RestoreTime::start() }
    }

    fn assert_short(self, scene: &str) {
        let gaps = self.watcher.finish();
        let one_file = self.restore_time.finish();
        println!("{scene}: a file is restored in at most {one_file:.1?}");
        gaps.assert_gaps_are_shorter_than(PASSES + FILES * one_file, scene);
    }
}

#[test]
fn upgrade_from_upstreams_agent_and_rollback_strand_no_pod() {
    let scene = Scene::begin();
    let node = &scene.node;
    let helm = &scene.helm;
    let (list, original) = active_conflist();
    let permissions = fs::metadata(&list).unwrap().permissions();
    let _account = create_account();
    helm.install_upstream(Program::Pause);
    let upstream = start_upstream_agent(None);
    until_within(WAIT, "upstream's entry", || node.entry().is_some());

    let gaps = Gaps::watch();
    burst::start_validated_pods_during("helm upgrade from upstream's agent", || {
        helm.run("upgrade", &["--reset-then-reuse-values"]);
        until_within(WAIT, "the entry is this chart's", || {
            node.entry().is_some_and(|entry| entry["linkerd"]["iptables-mode"] == "auto")
        });
    });
    gaps.assert_short("helm upgrade from upstream's agent");
    drop(upstream);
    until_within(WAIT, "this chart's agent is ready", is_ready);

    let gaps = Gaps::watch();
    let upgraded = agent().pod;
    let mut upstream = None;
    burst::start_validated_pods_during("helm rollback to upstream's agent", || {
        helm.rollback(&[]);
        upstream = Some(start_upstream_agent(Some(&upgraded)));
        wait_for_rollout();
    });
    gaps.assert_short("helm rollback to upstream's agent");
    assert_eq!(node.linkerd_entry()["linkerd"]["iptables-mode"], "nft");

    helm.uninstall();
    drop(upstream);
    // Upstream's agent removes its entry, and leaves its own format and mode.
    let left: Value = serde_json::from_str(&fs::read_to_string(&list).unwrap()).unwrap();
    assert_eq!(left, serde_json::from_str::<Value>(&original).unwrap());
    fs::write(&list, original).unwrap();
    fs::set_permissions(&list, permissions).unwrap();
    // Upstream's agent does not know of this file, which this project's next agent would use.
    let _ = fs::remove_file(STATE);
    assert!(scene.is_restored());
}
