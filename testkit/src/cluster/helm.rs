//! Helm and the release of the chart in this checkout.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::VERSION;

use super::agent::{DAEMONSET, wait_for_rollout};
use super::api;
use super::kubectl::kubectl;
use super::pods;
use super::upstream::{self, Program};
use crate::child::must;
use crate::until::becomes_true;

/// Namespace of the release. It is not deleted after each test, because its deletion takes 5 s.
pub const NAMESPACE: &str = "linkerd-cni";
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/linkerd2-cni");

/// Helm and the release. If the test panics, dropping the value uninstalls the release.
pub struct Helm(());

impl Helm {
    pub fn new() -> Self {
        Helm(())
    }

    /// Runs `helm install` or `helm upgrade` with the README's arguments.
    pub fn run(&self, verb: &str, more: &[&str]) {
        let begin = Instant::now();
        let mut helm = helm(&[verb, "linkerd-cni", CHART, "--wait", "--timeout", "60s"]);
        helm.args(["-n", NAMESPACE]);
        if verb == "install" {
            helm.arg("--create-namespace");
        }
        let output = helm.args(more).output().expect("helm runs");
        assert!(
            output.status.success(),
            "helm {verb}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            kubectl(&format!("get pods,events -n {NAMESPACE}"))
        );
        if verb == "upgrade" {
            // With `maxUnavailable: 1` and one node, helm does not wait for any pod.
            wait_for_rollout();
        }
        println!("{:>6.1?} helm {verb}", begin.elapsed());
    }

    pub fn install_upstream(&self, program: Program) {
        let chart = tempfile::tempdir().unwrap();
        upstream::write_chart(chart.path(), program);
        self.install(chart.path(), &[]);
    }

    /// Installs another chart with the image of this checkout. The image is chosen by its version,
    /// because its digest in an archive differs from the one that the chart names.
    pub fn install(&self, chart: &Path, more: &[&str]) {
        let version = format!("image.version=v{VERSION}");
        let install = ["install", "linkerd-cni", chart.to_str().unwrap(), "--set", &version];
        let into = ["-n", NAMESPACE, "--create-namespace"];
        self.must(&[&install[..], &into, more].concat());
    }

    /// Runs `helm uninstall` and waits until the agents have ended. This takes some 15 s, because
    /// helm deletes the ServiceAccounts together with the DaemonSet, and the API server accepts
    /// tokens of deleted accounts for another 10 s.
    pub fn uninstall(&self) {
        self.begin_uninstall();
        self.end_uninstall();
    }

    pub fn begin_uninstall(&self) {
        self.must(&["uninstall", "linkerd-cni", "-n", NAMESPACE]);
    }

    pub fn end_uninstall(&self) {
        pods::until_gone(NAMESPACE);
    }

    /// Deletes the DaemonSet, then uninstalls the release. An agent of this chart sees that its
    /// DaemonSet is deleted, and uninstalls at once. Under upstream's chart, an agent has no right
    /// to read the DaemonSet, so it takes as long as in [`Helm::uninstall`].
    pub fn remove(&self) {
        if !api::admin().is_missing(DAEMONSET) {
            api::delete(&format!("{DAEMONSET}?propagationPolicy=Foreground"));
        }
        self.uninstall();
    }

    /// Rolls back to the first revision.
    pub fn rollback(&self, more: &[&str]) {
        self.must(&[&["rollback", "linkerd-cni", "1", "-n", NAMESPACE], more].concat());
    }

    /// Runs helm with these arguments, and returns its stdout.
    pub fn must(&self, args: &[&str]) -> String {
        must(&mut helm(args))
    }
}

fn helm(args: &[&str]) -> Command {
    let mut helm = Command::new("helm");
    helm.args(args);
    helm
}

impl Drop for Helm {
    fn drop(&mut self) {
        if thread::panicking() {
            let release = ["uninstall", "linkerd-cni", "-n", NAMESPACE];
            let _ = helm(&release).args(["--wait", "--ignore-not-found"]).output();
            // Without this wait, the next test could find the plugin on the node.
            becomes_true(Duration::from_secs(60), || pods::are_gone(NAMESPACE));
        }
    }
}
