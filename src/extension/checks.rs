//! The checks of `linkerd cni check`.

mod nodes;
mod pre;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::agents::{Agent, DAEMONSET};
use super::api::{Api, Error, encoded, find, list};
use super::facts::{self, Facts, OptionalObject, config_path};
use super::objects::{InjectedPod, variable};
use super::report::{Check, Problem, Severity, Verdict};
use crate::cni::object::Object;
use crate::config::Config;
use crate::config::bypass::Reason;
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::daemonset_path;
use crate::repair::stranded::{FoundBy, INJECTED_LABEL, StrandedPod};

pub use pre::checks as before_install;

/// Headings of the groups of checks.
const CHART: &str = "linkerd-cni";
const NODES: &str = "linkerd-cni-nodes";
const PODS: &str = "linkerd-cni-pods";

/// Key of the ConfigMap with the template of the plugin entry.
const ENTRY_KEY: &str = "cni_network_config";
const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

/// Checks the chart that is installed in `namespace`. Without a DaemonSet, other checks would only repeat
/// that. The control plane is in `linkerd_namespace`. Agents are asked until `end`.
///
/// `linkerd check` runs these checks on every cluster, also on those that do not use the plugin.
pub fn installed(
    api: &dyn Api,
    namespace: &str,
    linkerd_namespace: &str,
    end: Deadline,
) -> Vec<Check> {
    let check = |description, verdict| Check::new(CHART, "daemonset", description, verdict);
    let found = find(api, &daemonset_path(namespace, DAEMONSET));
    let is_missing = matches!(found, Ok(None));
    if is_missing && facts::control_plane_uses_cni(api, linkerd_namespace) == Some(false) {
        let unused = "not installed, and not needed: cniEnabled of the control plane is false";
        return vec![check(unused, Ok(()))];
    }
    let mut checks = vec![check("linkerd-cni DaemonSet exists", exists(namespace, &found))];
    if let Ok(Some(daemonset)) = &found {
        let facts = facts::fetch(api, namespace, end);
        checks.extend(chart(api, namespace, daemonset, &facts));
        checks.extend(nodes::checks(&facts, daemonset));
        checks.push(pre::cilium(NODES, &facts::cilium(api)));
        checks.extend(pods(api, daemonset, &facts));
    }
    checks
}

/// Returns a fact; if it cannot be read, the check warns.
fn readable<'f, T>(fact: &'f Result<T, Error>, what: &str) -> Result<&'f T, Problem> {
    fact.as_ref().or_else(|why| Severity::Warning.unreadable(what, why))
}

fn chart(api: &dyn Api, namespace: &str, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(CHART, hint, description, verdict);
    let has_pods = facts.agents.as_ref().is_ok_and(|agents| !agents.is_empty());
    let admits = format!("namespace {namespace} admits the agent's pods");
    let admission = pre::pod_security(namespace, &find(api, &namespace_path(namespace)), has_pods);
    let config = config(api, namespace);
    let mut checks = vec![
        check("namespace", &admits, admission),
        check("configmap", "linkerd-cni-config ConfigMap has a valid plugin entry", config),
    ];
    let objects = facts::chart_objects(api, namespace, daemonset);
    checks.extend(objects.iter().map(|(text, object, found)| {
        let verdict = readable(found, object).and_then(|found| match found {
            Some(_) => Ok(()),
            None => missing(object),
        });
        check("objects", text, verdict)
    }));
    let is_other = |daemonset: &Value| daemonset["metadata"]["namespace"] != *namespace;
    checks.push(pre::other_agents(CHART, &facts::daemonsets(api), namespace, is_other));
    let verdict = rollout(&format!("{namespace}/{DAEMONSET}"), daemonset);
    checks.push(check("rollout", "linkerd-cni DaemonSet is rolled out", verdict));
    checks
}

fn config(api: &dyn Api, namespace: &str) -> Verdict {
    let name = format!("ConfigMap {namespace}/linkerd-cni-config");
    let found: OptionalObject = find(api, &config_path(namespace));
    match readable(&found, &name)?.as_ref().map(plugin_entry) {
        None => missing(&name),
        Some(Ok(_)) => Ok(()),
        Some(Err(why)) => Severity::Error.because(format!("{name}: {why}")),
    }
}

/// The error names the key and the problem.
pub fn plugin_entry(map: &Value) -> Result<Config, String> {
    let text = map["data"][ENTRY_KEY].as_str();
    let text = text.ok_or_else(|| format!("the key {ENTRY_KEY} is missing"))?;
    let object: Object =
        serde_json::from_str(text).map_err(|error| format!("{ENTRY_KEY}: {error}"))?;
    Config::read(&object).map_err(|error| format!("{ENTRY_KEY}: {}", error.msg))
}

fn missing(object: &str) -> Verdict {
    Severity::Error.because(format!("{object} does not exist; {REINSTALL}"))
}

fn exists(namespace: &str, daemonset: &OptionalObject) -> Verdict {
    let name = format!("DaemonSet {namespace}/{DAEMONSET}");
    match daemonset {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Severity::Error.because(format!(
            "{name} does not exist; install the chart with helm install or scripts/install-cni | \
             kubectl apply -f -, or name its namespace with --cni-namespace"
        )),
        Err(why) => Severity::Error.unreadable(&name, why),
    }
}

fn rollout(name: &str, daemonset: &Value) -> Verdict {
    let (metadata, status) = (&daemonset["metadata"], &daemonset["status"]);
    let number = |field: &Value| field.as_u64().unwrap_or_default();
    if number(&status["observedGeneration"]) < number(&metadata["generation"]) {
        return Severity::Pending
            .because(format!("Kubernetes has not processed the newest change of {name} yet"));
    }
    let numbers = ["desiredNumberScheduled", "updatedNumberScheduled"];
    match numbers.map(|name| number(&status[name])) {
        [0, _] => Severity::Error.because(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        )),
        [wanted, updated] if updated < wanted => Severity::Pending.because(format!(
            "{updated} of {wanted} nodes have a pod of the newest revision of {name}"
        )),
        _ => Ok(()),
    }
}

fn pods(api: &dyn Api, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let check = |hint, description, verdict| Check::new(PODS, hint, description, verdict);
    let exempt = counted(
        facts,
        Reason::ProxyUser,
        "pods with a container that bypasses the proxy; linkerd cni bypass names them",
    );
    let ipv6 = counted(
        facts,
        Reason::Ipv6,
        "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart and in the \
         control plane, and restart the pods",
    );
    let mut checks = vec![
        check("stranded", "no meshed pod started without redirect rules", stranded(api)),
        check("proxy-user", "no container runs as the proxy's user", exempt),
        check("ipv6", "all IP families of the cluster are redirected", ipv6),
    ];
    if variable(daemonset, "LINKERD_CNI_CHAINED") == Some("false") {
        checks.push(check(
            "multus",
            "Multus calls the plugin for all injected pods",
            attached(api),
        ));
    }
    checks
}

fn attached(api: &dyn Api) -> Verdict {
    let pods = list(api, "/api/v1/pods", &injected());
    let pods: &Vec<InjectedPod> = readable(&pods, "the injected pods")?;
    let lacking: Vec<String> = pods.iter().filter_map(|pod| pod.unattached.clone()).collect();
    Severity::Error.if_any(
        "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, so without \
         redirect rules; add it to their workloads, or set networkAttachmentDefinition.annotatePods \
         and restart them",
        &lacking,
    )
}

/// Stranded pods are in phase Pending.
fn stranded(api: &dyn Api) -> Verdict {
    let pending = format!("{}&fieldSelector=status.phase%3DPending", injected());
    let pods = list(api, "/api/v1/pods", &pending);
    let stranded: Vec<String> = readable(&pods, "the pods in phase Pending")?
        .iter()
        .filter_map(|pod| StrandedPod::found(pod, FoundBy::Validator))
        .map(|pod| format!("{}/{} on {}", pod.namespace, pod.name, pod.node))
        .collect();
    Severity::Error.if_any(
        "pods that started before the plugin was installed on their node; delete them, or enable \
         repairController",
        &stranded,
    )
}

fn injected() -> String {
    format!("labelSelector={}", encoded(INJECTED_LABEL))
}

/// Judges by the pods that each agent watches: reading all pods of the cluster would cost too much.
fn counted(facts: &Facts, reason: Reason, summary: &str) -> Verdict {
    let count = |agent: &Agent| {
        let count = *agent.body()?.pod_copy.as_ref()?.bypasses.get(reason.label())?;
        Some(format!("{}: {count} pods", agent.node()))
    };
    let counts = facts.agents.iter().flatten().filter_map(count);
    Severity::Warning.if_any(summary, &counts.collect::<Vec<_>>())
}
