//! Faults of pods that need a runtime or a network validator.

use std::fs;

use serde_json::{Value, json};

use super::shown::Shown;
use crate::cni::upstream_entry;
use crate::fault_page::{FaultPage, Source};
use crate::pods::{self, Pods};
use crate::until::until;
use crate::upstream_agent::active_conflist;

/// The network config of the node, with a plugin entry while this value lives.
struct Entry {
    path: std::path::PathBuf,
    before: String,
}

impl Entry {
    fn add() -> Entry {
        let (path, before) = active_conflist();
        let mut list: Value = serde_json::from_str(&before).unwrap();
        list["plugins"].as_array_mut().unwrap().push(upstream_entry());
        fs::write(&path, list.to_string()).unwrap();
        Entry { path, before }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

/// The network config has a plugin entry, and the plugin is not on the node.
pub fn the_plugin_is_missing() {
    let entry = Entry::add();
    let pods = Pods::default();
    pods.create(&[pods::unmeshed("no-plugin")]);
    let shown = Shown::new(FaultPage::new("plugin-missing")).event(
        Source::KubeletEvent,
        "no-plugin",
        "FailedCreatePodSandBox",
        "failed to find plugin",
    );
    let shown = shown.pods("no-plugin", "ContainerCreating");
    drop(entry);
    pods.until_ready("no-plugin");
    shown.compare();
}

/// ADD fails; which text of it kubelet shows.
pub fn an_add_fails(pods: &Pods) {
    let mut pod = pods::meshed("add-fails");
    pod["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] = json!("mysql");
    pods.create(&[pod]);
    let shown = Shown::new(FaultPage::new("add-failed")).event(
        Source::KubeletEvent,
        "add-fails",
        "FailedCreatePodSandBox",
        "failed (add)",
    );
    shown.pods("add-fails", "ContainerCreating").compare();
}

/// A meshed pod started before the plugin was installed.
pub fn a_pod_is_stranded() {
    let shown = Shown::new(FaultPage::new("stranded-pod"))
        // After it stands why nobody answered: the node's network decides, by how often it was asked.
        .cut_after("192.0.2.3:20001: ")
        .event(Source::PodEvent, "stranded", "LinkerdCNINotConfigured", "")
        .pods("stranded", "Init:CrashLoopBackOff");
    let mut shown = shown.check("no meshed pod started without redirect rules");
    let text = "Reported stranded pod";
    let line = log_line(
        &["-n", "linkerd-cni", "-l", "k8s-app=linkerd-cni", "-c", "repair-controller"],
        text,
    );
    shown.capture(Source::RepairLog, line.split_once(' ').unwrap().1.trim_start());
    let validator = ["-n", "stranded", "stranded", "-c", "linkerd-network-validator"];
    shown.capture(Source::ContainerLog, &log_line(&validator, "Failed to validate"));
    shown.compare();
}

/// The first line with `text` that `kubectl logs` prints.
fn log_line(args: &[&str], text: &str) -> String {
    let mut found = None;
    until(text, || {
        let output = pods::command(&[&["logs", "--tail=-1"], args].concat()).output().unwrap();
        let log = String::from_utf8(output.stdout).unwrap();
        found = log.lines().find(|line| line.contains(text)).map(str::to_owned);
        found.is_some()
    });
    found.unwrap()
}
