//! The pages of the fault catalogue that only a cluster can show; `src/tests/agent/catalogue` has
//! the others. One test causes all faults, one after the other, as each installation takes half a
//! minute.

use std::fs;

use serde_json::{Value, json};
use testkit::child::must;

use crate::cni::upstream_entry;
use crate::extension::{cni, label};
use crate::fault_page::{FaultPage, Source, problems};
use crate::helm::NAMESPACE;
use crate::kubectl::get_items;
use crate::pods::{self, Pods, command, field, kubectl};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_found};
use crate::upstream_agent::active_conflist;

#[test]
fn faults_of_pods_and_installation_are_shown_as_documented() {
    let scene = Scene::begin();
    let Scene { helm, pods, .. } = &scene;
    the_plugin_is_missing();

    // Deletes the Events of other tests, which leave the namespace.
    let _ = command(&format!("delete events --all -n {NAMESPACE}")).output();
    pods.create(&[pods::validated("stranded", "1s")]);
    pods.until_stranded("stranded");
    helm.run("install", &["--set=repairController.enabled=true,repairController.mode=report"]);
    a_pod_is_stranded();
    an_add_fails(pods);

    let restore = OnDrop(restore);
    // In this order each fault hides the one before it, and one rollout ends all of them.
    kubectl(&format!("delete serviceaccount linkerd-cni-plugin -n {NAMESPACE}"));
    Shown::new("object-missing")
        .captures_check("linkerd-cni-plugin ServiceAccount exists")
        .assert_documented();
    the_image_cannot_be_pulled();
    patch(r#"{"nodeSelector":{"example.com/mesh":"yes"}}"#);
    Shown::new("node-out-of-scope").captures_check("DaemonSet is rolled out").assert_documented();
    the_namespace_rejects_the_agents_pods();
    drop(restore);
    scene.remove();
}

fn the_plugin_is_missing() {
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

fn an_add_fails(pods: &Pods) {
    let mut pod = pods::meshed("add-fails");
    pod["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] = json!("mysql");
    pods.create(&[pod]);
    Shown::new("add-failed")
        .event(Source::KubeletEvent, "add-fails", "FailedCreatePodSandBox", "failed (add)")
        .pods("add-fails", "ContainerCreating")
        .assert_documented();
}

fn a_pod_is_stranded() {
    let mut shown = Shown::new("stranded-pod")
        // The text after the address says why nobody answered, which depends on the node's network.
        .cut_after("192.0.2.3:20001: ")
        .event(Source::PodEvent, "stranded", "LinkerdCNINotConfigured", "")
        .pods("stranded", "Init:CrashLoopBackOff")
        .captures_check("no validator and no audit finds a meshed pod without redirect rules");
    let controller = "-n linkerd-cni -l k8s-app=linkerd-cni -c repair-controller";
    let line = log_line(controller, "Reported stranded pod");
    shown.capture(Source::RepairLog, line.split_once(' ').unwrap().1.trim_start());
    let validator = "-n stranded stranded -c linkerd-network-validator";
    shown.capture(Source::ContainerLog, &log_line(validator, "Failed to validate"));
    shown.assert_documented();
}

fn the_image_cannot_be_pulled() {
    let image = "registry.invalid/linkerd/cni-plugin:v2.0.0";
    patch(&format!(
        r#"{{"imagePullSecrets":[{{"name":"regcred"}}],"containers":[{{"name":"install-cni","image":"{image}"}}]}}"#
    ));
    Shown::new("image-pull")
        .event(Source::DaemonSetEvent, NAMESPACE, "FailedToRetrieveImagePullSecret", "regcred")
        .cut_after("\"registry.invalid/linkerd/cni-plugin:v2.0.0\"")
        .captures_check("Back-off pulling image")
        .assert_documented();
}

fn the_namespace_rejects_the_agents_pods() {
    label("pod-security.kubernetes.io/enforce=baseline");
    kubectl(&format!("rollout undo daemonset/linkerd-cni --to-revision=1 -n {NAMESPACE}"));
    Shown::new("namespace-label")
        .captures_check("namespace linkerd-cni admits the agent's pods")
        .event(Source::DaemonSetEvent, NAMESPACE, "FailedCreate", "violates PodSecurity")
        .assert_documented();
}

fn patch(spec: &str) {
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{spec}}}}}}}"#);
    must(command(&format!("patch daemonset linkerd-cni -n {NAMESPACE} -p")).arg(patch));
}

/// Lets the DaemonSet's pods run again, so that the agent can uninstall.
fn restore() {
    label("pod-security.kubernetes.io/enforce=privileged");
    // Without the plugin's account no agent gets ready. A change has the DaemonSet's controller try
    // again at once, instead of after its growing delay.
    for words in [
        "create serviceaccount linkerd-cni-plugin",
        "rollout undo daemonset/linkerd-cni --to-revision=1",
        "annotate daemonset/linkerd-cni --overwrite example.com/restored=yes",
        "rollout status daemonset/linkerd-cni --timeout=90s",
    ] {
        let _ = command(&format!("{words} -n {NAMESPACE}")).output();
    }
}

fn log_line(args: &str, text: &str) -> String {
    until_found(text, || {
        let output = command(&format!("logs --tail=-1 {args}")).output().unwrap();
        let log = String::from_utf8(output.stdout).unwrap();
        log.lines().find(|line| line.contains(text)).map(str::to_owned)
    })
}

/// What kubectl and `linkerd cni` show of a fault, without what differs between runs.
struct Shown {
    page: FaultPage,
    node: String,
    cut: Option<&'static str>,
}

impl Shown {
    fn new(name: &'static str) -> Shown {
        let node = field("nodes", ".items[0].metadata.name");
        Shown { page: FaultPage::new(name), node, cut: None }
    }

    fn event(mut self, source: Source, namespace: &str, reason: &str, text: &str) -> Shown {
        let line = until_found(&format!("the Event {reason} with {text}"), || {
            let events =
                get_items(&format!("events -n {namespace} --field-selector=reason={reason}"));
            let lines = events.iter().map(|event| {
                let [kind, message] = ["type", "message"].map(|key| event[key].as_str().unwrap());
                format!("{kind}  {reason}  {message}")
            });
            lines.into_iter().find(|line| line.contains(text))
        });
        self.capture(source, &line);
        self
    }

    /// Cuts the texts that are captured next after `text`, as the rest differs between machines.
    fn cut_after(mut self, text: &'static str) -> Shown {
        self.cut = Some(text);
        self
    }

    fn captures_check(mut self, text: &str) -> Shown {
        let found = until_found(&format!("linkerd cni check says {text}"), || {
            let report = cni(&["check", "-o", "short", "--wait=0s"]).1;
            problems(&report).into_iter().find(|problem| problem.contains(text))
        });
        self.capture(Source::Check, &found);
        self
    }

    fn pods(mut self, namespace: &str, status: &str) -> Shown {
        let mut found = String::new();
        until(&format!("a pod is {status}"), || {
            found = kubectl(&format!("get pods -n {namespace}"));
            found.contains(status)
        });
        let is_shown = |line: &&str| line.starts_with("NAME") || line.contains(status);
        let columns = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join("   ");
        let lines: Vec<String> = found.lines().filter(is_shown).map(columns).collect();
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
        for (before, after, shown) in [
            ("for sandbox \"", "\"", "ID"),
            ("pods \"linkerd-cni-", "\"", "x"),
            ("pod linkerd-cni-", ":", "x"),
        ] {
            text = mask(&text, before, after, shown);
        }
        let cut = |line: &str| match self.cut.and_then(|end| Some((line.split_once(end)?.0, end))) {
            Some((head, end)) => format!("{head}{end}...\n"),
            None => format!("{line}\n"),
        };
        let text: String = text.lines().map(cut).collect();
        self.page.shows(source, &text);
    }

    fn assert_documented(self) {
        self.page.assert_documented();
    }
}

fn mask(text: &str, before: &str, after: &str, shown: &str) -> String {
    let parts =
        text.split_once(before).and_then(|(head, rest)| Some((head, rest.split_once(after)?.1)));
    parts.map_or(text.to_owned(), |(head, tail)| format!("{head}{before}{shown}{after}{tail}"))
}
