//! The pages of the fault catalogue that only a cluster can show; `src/tests/agent/catalogue` has
//! the others. One test causes all faults, one after the other, as each installation takes half a
//! minute.

use std::fs;

use serde_json::{Value, json};
use testkit::child::must;

use crate::agent::agent;
use crate::cni::upstream_entry;
use crate::extension::{label, linkerd_cni};
use crate::fault_page::{FaultPage, Source, problems};
use crate::helm::NAMESPACE;
use crate::kubectl::{command, kubectl};
use crate::pods::{self, Pods};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_found};
use crate::upstream_agent::active_conflist;
use crate::{events, node};

#[test]
fn faults_of_pods_and_installation_are_shown_as_documented() {
    let scene = Scene::begin();
    cause_missing_plugin();

    // Deletes the Events of other tests, which leave the namespace.
    let _ = command(&format!("delete events --all -n {NAMESPACE}")).output();
    scene.pods.create(&[pods::validated("stranded", "1s")]);
    scene.pods.until_stranded("stranded");
    let report = "--set=repairController.enabled=true,repairController.mode=report";
    scene.helm.run("install", &[report]);
    capture_stranded_pod();
    cause_failed_add(&scene.pods);

    let restore = OnDrop(restore_daemonset);
    // In this order each fault hides the one before it, and one rollout ends all of them.
    kubectl(&format!("delete serviceaccount linkerd-cni-plugin -n {NAMESPACE}"));
    Shown::new("object-missing")
        .captures_check("linkerd-cni-plugin ServiceAccount exists")
        .assert_documented();
    cause_image_pull_failure();
    patch_pod_spec(r#"{"nodeSelector":{"example.com/mesh":"yes"}}"#);
    Shown::new("node-out-of-scope").captures_check("DaemonSet is rolled out").assert_documented();
    cause_rejected_agent_pods();
    drop(restore);
    scene.remove();
}

/// Chains the plugin without its binary.
fn cause_missing_plugin() {
    let (path, before) = active_conflist();
    let mut list: Value = serde_json::from_str(&before).unwrap();
    list["plugins"].as_array_mut().unwrap().push(upstream_entry());
    fs::write(&path, list.to_string()).unwrap();
    let entry = OnDrop(|| {
        let _ = fs::write(&path, &before);
    });
    let pods = Pods::default();
    pods.create(&[pods::unmeshed("no-plugin")]);
    let reason = "FailedCreatePodSandBox";
    let shown = Shown::new("plugin-missing")
        .event(Source::KubeletEvent, "no-plugin", reason, "failed to find plugin")
        .pods("no-plugin", "ContainerCreating");
    drop(entry);
    pods.until_ready("no-plugin");
    shown.assert_documented();
}

/// Starts a pod with an invalid annotation.
fn cause_failed_add(pods: &Pods) {
    let mut pod = pods::meshed("add-fails");
    pod["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] = json!("mysql");
    pods.create(&[pod]);
    Shown::new("add-failed")
        .event(Source::KubeletEvent, "add-fails", "FailedCreatePodSandBox", "failed (add)")
        .pods("add-fails", "ContainerCreating")
        .assert_documented();
}

fn capture_stranded_pod() {
    let mut shown = Shown::new("stranded-pod")
        // The text after the address says why no server responded, which depends on the node's
        // network.
        .cut_after("192.0.2.3:20001: ")
        .event(Source::PodEvent, "stranded", "LinkerdCNINotConfigured", "")
        .pods("stranded", "Init:CrashLoopBackOff")
        .captures_check("no validator and no audit finds a meshed pod without redirect rules");
    let controller = [NAMESPACE, &agent().pod, "repair-controller"];
    let line = log_line(controller, "Reported stranded pod");
    shown.capture(Source::RepairLog, line.split_once(' ').unwrap().1.trim_start());
    let validator = ["stranded", "stranded", "linkerd-network-validator"];
    shown.capture(Source::ContainerLog, &log_line(validator, "Failed to validate"));
    shown.assert_documented();
}

fn cause_image_pull_failure() {
    let image = "registry.invalid/linkerd/cni-plugin:v2.0.0";
    patch_pod_spec(&format!(
        r#"{{"imagePullSecrets":[{{"name":"regcred"}}],"containers":[{{"name":"install-cni","image":"{image}"}}]}}"#
    ));
    Shown::new("image-pull")
        .event(Source::DaemonSetEvent, NAMESPACE, "FailedToRetrieveImagePullSecret", "regcred")
        .cut_after("\"registry.invalid/linkerd/cni-plugin:v2.0.0\"")
        .captures_check("Back-off pulling image")
        .assert_documented();
}

fn cause_rejected_agent_pods() {
    label("pod-security.kubernetes.io/enforce=baseline");
    kubectl(&format!("rollout undo daemonset/linkerd-cni --to-revision=1 -n {NAMESPACE}"));
    Shown::new("namespace-label")
        .captures_check("namespace linkerd-cni admits the agent's pods")
        .event(Source::DaemonSetEvent, NAMESPACE, "FailedCreate", "violates PodSecurity")
        .assert_documented();
}

fn patch_pod_spec(spec: &str) {
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{spec}}}}}}}"#);
    must(command(&format!("patch daemonset linkerd-cni -n {NAMESPACE} -p")).arg(patch));
}

/// Lets the DaemonSet's pods run again, so that the agent can uninstall.
fn restore_daemonset() {
    label("pod-security.kubernetes.io/enforce=privileged");
    // Without the plugin's account, no agent gets ready. After the annotation, the DaemonSet's
    // controller tries again at once, instead of after its growing delay.
    for command_line in [
        "create serviceaccount linkerd-cni-plugin",
        "rollout undo daemonset/linkerd-cni --to-revision=1",
        "annotate daemonset/linkerd-cni --overwrite example.com/restored=yes",
        "rollout status daemonset/linkerd-cni --timeout=90s",
    ] {
        let _ = command(&format!("{command_line} -n {NAMESPACE}")).output();
    }
}

/// Waits until a container's log has a line with this text, and returns the line.
fn log_line([namespace, pod, container]: [&str; 3], text: &str) -> String {
    until_found(text, || {
        let log = pods::log(namespace, pod, container).ok()?;
        log.lines().find(|line| line.contains(text)).map(str::to_owned)
    })
}

/// The texts that kubectl and `linkerd cni` show of a fault, without the parts that differ between
/// runs.
struct Shown {
    page: FaultPage,
    node: String,
    /// Text after which a line is cut.
    last_text: Option<&'static str>,
}

impl Shown {
    fn new(name: &'static str) -> Shown {
        Shown { page: FaultPage::new(name), node: node::name(), last_text: None }
    }

    /// Waits for an Event with this reason and text, and captures it.
    fn event(mut self, source: Source, namespace: &str, reason: &str, text: &str) -> Shown {
        let line = until_found(&format!("the Event {reason} with {text}"), || {
            let events = events::list(namespace, reason);
            let mut lines = events.iter().map(|event| {
                let kind = event["type"].as_str().unwrap();
                let message = event["message"].as_str().unwrap();
                format!("{kind}  {reason}  {message}")
            });
            lines.find(|line| line.contains(text))
        });
        self.capture(source, &line);
        self
    }

    /// Cuts the lines that are captured next after `text`, because the rest differs between
    /// machines.
    fn cut_after(mut self, text: &'static str) -> Shown {
        self.last_text = Some(text);
        self
    }

    /// Waits until `linkerd cni check` reports a problem with this text, and captures it.
    fn captures_check(mut self, text: &str) -> Shown {
        let found = until_found(&format!("linkerd cni check says {text}"), || {
            let report = linkerd_cni(&["check", "-o", "short", "--wait=0s"]).1;
            problems(&report).into_iter().find(|problem| problem.contains(text))
        });
        self.capture(Source::Check, &found);
        self
    }

    /// Waits until `kubectl get pods` shows this status, and captures its first columns.
    fn pods(mut self, namespace: &str, status: &str) -> Shown {
        let mut output = String::new();
        until(&format!("a pod is {status}"), || {
            output = kubectl(&format!("get pods -n {namespace}"));
            output.contains(status)
        });
        let mut lines: Vec<String> = Vec::new();
        for line in output.lines() {
            if line.starts_with("NAME") || line.contains(status) {
                let columns: Vec<&str> = line.split_whitespace().take(3).collect();
                lines.push(columns.join("   "));
            }
        }
        self.capture(Source::Pods, &lines.join("\n"));
        self
    }

    fn capture(&mut self, source: Source, text: &str) {
        let node = &self.node;
        let mut text = text
            .replace("(combined from similar events): ", "")
            .replace(&format!(" {node}"), " node-1")
            .replace(&format!("{node}:"), "node-1:")
            // The bin dir of the tests' node beside the usual one.
            .replace(" /var/lib/linkerd2-cni-cluster/cni-bin", "");
        for (before, after, placeholder) in [
            ("for sandbox \"", "\"", "ID"),
            ("pods \"linkerd-cni-", "\"", "x"),
            ("pod linkerd-cni-", ":", "x"),
        ] {
            text = mask(&text, before, after, placeholder);
        }
        let lines: String = text.lines().map(|line| self.cut(line) + "\n").collect();
        self.page.shows(source, &lines);
    }

    /// Cuts a line after the text of [`Shown::cut_after`], if the line contains it.
    fn cut(&self, line: &str) -> String {
        if let Some(last_text) = self.last_text
            && let Some((head, _)) = line.split_once(last_text)
        {
            return format!("{head}{last_text}...");
        }
        line.to_owned()
    }

    fn assert_documented(self) {
        self.page.assert_documented();
    }
}

/// Replaces the text between `before` and `after` by a placeholder.
fn mask(text: &str, before: &str, after: &str, placeholder: &str) -> String {
    if let Some((head, rest)) = text.split_once(before)
        && let Some((_, tail)) = rest.split_once(after)
    {
        return format!("{head}{before}{placeholder}{after}{tail}");
    }
    text.to_owned()
}
