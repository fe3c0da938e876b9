//! Checks of the chart's objects and the rollout of the DaemonSet. Pure.

use super::cluster::pod_security;
use super::pre::other_agents;
use super::{CHART, readable};
use crate::cni::object::Object;
use crate::config::Config;
use crate::extension::agents::DAEMONSET;
use crate::extension::facts::{ChartObject, Facts};
use crate::extension::objects::{AgentDaemonSet, ConfigMap};
use crate::extension::report::{Check, Severity, Verdict};

/// Key of the ConfigMap with the template of the plugin entry.
const ENTRY_KEY: &str = "cni_network_config";
const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

pub fn checks(facts: &Facts) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(CHART, hint, description, verdict);
    let name = &facts.namespace;
    if is_absent(facts) {
        let absent = Severity::Error.because(format!(
            "no object of the chart exists in namespace {name}; install the chart with helm install or \
             scripts/install-cni | kubectl apply -f -, or name its namespace with --cni-namespace"
        ));
        return vec![check("daemonset", "the chart is installed", absent)];
    }
    let has_pods = facts.agents.as_ref().is_ok_and(|agents| !agents.is_empty());
    let admission = pod_security(name, &facts.namespace_object, has_pods);
    let mut checks = vec![
        check("namespace", &format!("namespace {name} admits the agent's pods"), admission),
        check("configmap", "linkerd-cni-config ConfigMap has a valid plugin entry", config(facts)),
    ];
    checks.extend(facts.objects.iter().map(|object| {
        let exists = format!("{} {} exists", object.name, object.kind);
        check("objects", &exists, chart_object(name, object))
    }));
    checks.push(check("daemonset", &format!("{DAEMONSET} DaemonSet exists"), daemonset(facts)));
    let is_other = |daemonset: &AgentDaemonSet| daemonset.namespace != *name;
    checks.push(other_agents(CHART, &facts.daemonsets, name, is_other));
    if let Ok(Some(daemonset)) = &facts.daemonset {
        let verdict = rollout(&format!("{name}/{DAEMONSET}"), daemonset);
        checks.push(check("rollout", &format!("{DAEMONSET} DaemonSet is rolled out"), verdict));
    }
    checks
}

/// Whether the chart is not installed. Each of its objects would be reported as missing.
fn is_absent(facts: &Facts) -> bool {
    let is_missing = |object: &ChartObject| matches!(object.found, Ok(None));
    matches!((&facts.daemonset, &facts.config), (Ok(None), Ok(None)))
        && facts.objects.iter().all(is_missing)
}

fn config(facts: &Facts) -> Verdict {
    let name = format!("ConfigMap {}/linkerd-cni-config", facts.namespace);
    match readable(&facts.config, &name)?.as_ref().map(plugin_entry) {
        None => missing(&name),
        Some(Ok(_)) => Ok(()),
        Some(Err(why)) => Severity::Error.because(format!("{name}: {why}")),
    }
}

/// Reads the plugin entry from the ConfigMap.
///
/// # Errors
/// Names the key and the problem.
pub fn plugin_entry(map: &ConfigMap) -> Result<Config, String> {
    let text = map.data.get(ENTRY_KEY).ok_or_else(|| format!("the key {ENTRY_KEY} is missing"))?;
    let object: Object =
        serde_json::from_str(text).map_err(|error| format!("{ENTRY_KEY}: {error}"))?;
    Config::read(&object).map_err(|error| format!("{ENTRY_KEY}: {}", error.msg))
}

fn chart_object(namespace: &str, object: &ChartObject) -> Verdict {
    let ChartObject { kind, name, found } = object;
    match readable(found, &format!("{kind} {name}"))? {
        Some(_) => Ok(()),
        None if kind.starts_with("Cluster") => missing(&format!("{kind} {name}")),
        None => missing(&format!("{kind} {namespace}/{name}")),
    }
}

fn missing(object: &str) -> Verdict {
    Severity::Error.because(format!("{object} does not exist; {REINSTALL}"))
}

fn daemonset(facts: &Facts) -> Verdict {
    let name = format!("DaemonSet {}/{DAEMONSET}", facts.namespace);
    match &facts.daemonset {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Severity::Error.because(format!(
            "{name} does not exist; install the chart, or name its namespace with --cni-namespace"
        )),
        Err(why) => Severity::Error.unreadable(&name, why),
    }
}

fn rollout(name: &str, daemonset: &AgentDaemonSet) -> Verdict {
    if !daemonset.is_observed {
        return Severity::Pending
            .because(format!("Kubernetes has not processed the newest change of {name} yet"));
    }
    match (daemonset.desired, daemonset.updated) {
        (0, _) => Severity::Error.because(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        )),
        (wanted, updated) if updated < wanted => Severity::Pending.because(format!(
            "{updated} of {wanted} nodes have a pod of the newest revision of {name}"
        )),
        _ => Ok(()),
    }
}
