//! The node and the release that the actions disturb.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use testkit::OnDrop;
use testkit::cluster::active::{self, State};
use testkit::cluster::agent;
use testkit::cluster::helm::{Helm, NAMESPACE};
use testkit::cluster::pods::command;

use crate::api::Api;
use crate::ledger::{self, Invariant};

/// Longest time until the node is healthy again. It is long, because kubelet restarts a container
/// after up to 40 s, and the API server caches a token review for 10 s.
const RECOVERY: Duration = Duration::from_secs(150);

pub struct World {
    pub helm: Helm,
    pub api: Api,
    pub rng: StdRng,
    /// The conflist that the primary CNI has written.
    pub original: String,
}

/// Makes a file or directory immutable until the value is dropped.
pub fn make_immutable(path: PathBuf) -> OnDrop<impl FnMut()> {
    change_attribute("+i", &path);
    OnDrop(move || change_attribute("-i", &path))
}

/// Changes an attribute of a file. An error is ignored, because another program may have removed
/// the file.
fn change_attribute(flag: &str, path: &Path) {
    let _ = Command::new("chattr").arg(flag).arg(path).stderr(Stdio::null()).status();
}

impl World {
    /// Waits until `is_over` returns true and the node is healthy. If this takes too long since
    /// `begin`, records a violation.
    pub fn recovered(&self, begin: Instant, is_over: impl Fn() -> bool) {
        let is_recovered = || is_over() && self.is_healthy();
        while !is_recovered() {
            if begin.elapsed() > RECOVERY {
                let seen = format!("not recovered after {RECOVERY:?}: {}", self.state());
                return ledger::violated(Invariant::Recovery, seen);
            }
            thread::sleep(Duration::from_millis(100));
        }
        ledger::recovered(begin.elapsed());
    }

    fn is_healthy(&self) -> bool {
        active::state("") == State::Installed
            && self.agent_address().is_some_and(|address| {
                let is_ready = |port| self.api.is_ok(&format!("http://{address}:{port}/ready"));
                [9990, 9991].into_iter().all(is_ready)
            })
    }

    fn agent_address(&self) -> Option<String> {
        let path =
            format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=k8s-app%3Dlinkerd-cni");
        let pods = self.api.get(&path)?;
        match pods["items"].as_array()?.as_slice() {
            [pod] if pod["metadata"]["deletionTimestamp"].is_null() => {
                pod["status"]["podIP"].as_str().map(str::to_owned)
            }
            _ => None,
        }
    }

    fn state(&self) -> String {
        let agents = agent::find_agent().map(|agent| (agent.pod, agent.ready));
        let logs = format!("logs -n {NAMESPACE} -l k8s-app=linkerd-cni --tail=15 --prefix");
        let logs = command(&logs).arg("--all-containers").output();
        let logs = logs.map(|logs| logs.stdout).unwrap_or_default();
        let (files, logs) = (active::state(""), String::from_utf8_lossy(&logs));
        format!("files {files:?}, agent and its readiness {agents:?}, its log: {logs}")
    }
}
