//! Checks before the installation, and those of the cluster that apply after it too.

use serde_json::{Value, json};

use super::readable;
use crate::extension::agents::DAEMONSET;
use crate::extension::api::{Api, Error, decode, find, get};
use crate::extension::facts::{self, OptionalObject, RBAC};
use crate::extension::objects::{admin_port, pod_spec, text};
use crate::extension::report::{Check, Severity, Verdict};
use crate::kube::object_reader::namespace_path;

const PRE: &str = "linkerd-cni-pre";
/// Oldest supported Kubernetes: `kubeVersion` of the chart.
pub const OLDEST_KUBERNETES: (u32, u32) = (1, 31);
/// Label of a namespace with the Pod Security Standard that its pods must meet.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// What the chart creates: API group, resource, and whether it is namespaced.
const CREATED: [(&str, &str, bool); 8] = [
    ("", "namespaces", false),
    (RBAC, "clusterroles", false),
    (RBAC, "clusterrolebindings", false),
    (RBAC, "roles", true),
    (RBAC, "rolebindings", true),
    ("", "serviceaccounts", true),
    ("", "configmaps", true),
    ("apps", "daemonsets", true),
];

/// Checks whether the chart can be installed in `namespace`. A failed request does not stop the others.
pub fn checks(api: &dyn Api, namespace: &str) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(PRE, hint, description, verdict);
    let (major, minor) = OLDEST_KUBERNETES;
    let is_supported = format!("Kubernetes is {major}.{minor} or later");
    let found = find(api, &namespace_path(namespace));
    // The namespace may exist already.
    let created = &CREATED[usize::from(matches!(found, Ok(Some(_))))..];
    let admits = format!("namespace {namespace} admits the agent's pods");
    let admission = match &found {
        // It is still to be created, with the label.
        Ok(None) => Ok(()),
        found => pod_security(namespace, found, false),
    };
    vec![
        check("kubernetes-version", &is_supported, version(&get(api, "/version"))),
        check("rights", "can create the chart's objects", rights(api, namespace, created)),
        check("namespace", &admits, admission),
        other_agents(PRE, &facts::daemonsets(api), namespace, |_| true),
        cilium(PRE, &facts::cilium(api)),
    ]
}

fn version(version: &Result<Value, Error>) -> Verdict {
    let text = text(&readable(version, "the version of the API server")?["gitVersion"]);
    let mut numbers = text.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(a), Some(b)) if (a, b) >= OLDEST_KUBERNETES => Ok(()),
        (Some(_), Some(_)) => {
            Severity::Error.because(format!("the API server is {text}; upgrade Kubernetes"))
        }
        _ => Severity::Warning.because(format!("unknown version of the API server: {text:?}")),
    }
}

/// Fails if the user may not create one of the kinds of objects.
fn rights(api: &dyn Api, namespace: &str, created: &[(&str, &str, bool)]) -> Verdict {
    const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (mut denied, mut unread) = (Vec::new(), Ok(()));
    for (group, resource, is_namespaced) in created {
        let namespace = if *is_namespaced { namespace } else { "" };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": "create", "group": group, "resource": resource, "namespace": namespace,
            }},
        });
        let response = api.request("POST", PATH, &review.to_string());
        let response = response.and_then(|body| decode::<Value>(PATH, &body));
        match readable(&response, "your rights") {
            Ok(review) if review["status"]["allowed"] == true => {}
            Ok(_) => denied.push((*resource).to_owned()),
            Err(why) => {
                unread = Err(why);
                break;
            }
        }
    }
    let summary = "you have no right to create; install the chart as a user with this right";
    Severity::Error.if_any(summary, &denied).and(unread)
}

/// Checks that there is no agent beside the one in `namespace`. `is_other` decides about DaemonSets.
pub fn other_agents(
    category: &'static str,
    daemonsets: &Result<Vec<Value>, Error>,
    namespace: &str,
    is_other: impl Fn(&Value) -> bool,
) -> Check {
    let verdict = readable(daemonsets, "the DaemonSets").and_then(|found| {
        let others = found.iter().filter(|daemonset| is_other(daemonset));
        let names: Vec<String> = others.map(|daemonset| describe(daemonset, namespace)).collect();
        Severity::Warning.if_any(&format!("DaemonSets with the label k8s-app={DAEMONSET}"), &names)
    });
    Check::new(category, "other-agent", "no other agent of Linkerd is installed", verdict)
}

fn describe(daemonset: &Value, namespace: &str) -> String {
    let [own_namespace, name] = ["namespace", "name"].map(|key| text(&daemonset["metadata"][key]));
    let is_upstream = admin_port(pod_spec(daemonset)).is_none();
    let whose = if is_upstream { "upstream's chart" } else { "this chart" };
    let what = match (own_namespace == namespace, is_upstream) {
        (true, true) => "helm upgrade, or scripts/install-cni | kubectl apply -f -, replaces it",
        (true, false) => {
            "upgrade with helm upgrade, or scripts/install-cni | kubectl apply -f -, and use \
             linkerd cni check without --pre"
        }
        (false, _) => "uninstall it: two agents would share the nodes' files",
    };
    format!("{own_namespace}/{name} of {whose}: {what}")
}

/// Checks that Cilium neither disables the plugin's network config nor bypasses the redirect rules.
pub fn cilium(category: &'static str, maps: &Result<Vec<Value>, Error>) -> Check {
    let verdict = readable(maps, "the ConfigMaps cilium-config").and_then(|maps| {
        let problems: Vec<String> = maps.iter().flat_map(cilium_problems).collect();
        Severity::Warning.if_any("Cilium's settings conflict with the plugin", &problems)
    });
    Check::new(category, "cilium", "Cilium, if installed, leaves the plugin in place", verdict)
}

fn cilium_problems(map: &Value) -> Vec<String> {
    let data = &map["data"];
    let namespace = text(&map["metadata"]["namespace"]);
    let mut problems = Vec::new();
    // Cilium's default is true.
    if data["cni-exclusive"] != "false" {
        problems.push(format!(
            "{namespace}/cilium-config: cni-exclusive is not \"false\", so Cilium disables the network \
             configs of other plugins; install Cilium with cni.exclusive=false"
        ));
    }
    if data["kube-proxy-replacement"] == "true" && data["bpf-lb-sock-hostns-only"] != "true" {
        problems.push(format!(
            "{namespace}/cilium-config: with kube-proxy-replacement, Cilium resolves Services before \
             the proxy sees them; install Cilium with socketLB.hostNamespaceOnly=true"
        ));
    }
    problems
}

/// Checks that Pod Security Admission admits the agent's pods. `has_pods`: it has admitted some.
pub fn pod_security(name: &str, namespace: &OptionalObject, has_pods: bool) -> Verdict {
    let remedy = format!("kubectl label --overwrite namespace {name} {ENFORCE}=privileged");
    let Some(namespace) = readable(namespace, &format!("namespace {name}"))? else {
        return Severity::Error.because(format!("namespace {name} does not exist"));
    };
    match namespace["metadata"]["labels"][ENFORCE].as_str() {
        Some("privileged") => Ok(()),
        Some(level) => Severity::Error.because(format!(
            "the label {ENFORCE}={level} of namespace {name} rejects the agent's pods, which mount \
             directories of the node: {remedy}"
        )),
        None if has_pods => Ok(()),
        None => Severity::Warning.because(format!(
            "namespace {name} has no label {ENFORCE}. If the cluster's default is baseline or \
             restricted, the agent's pods are rejected: {remedy}"
        )),
    }
}
