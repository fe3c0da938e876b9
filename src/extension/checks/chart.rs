//! Checks of the chart's objects and the rollout of the DaemonSet. Pure.

use super::cluster::pod_security;
use super::{CHART, unreadable, unreadable_text};
use crate::cni::object::Object;
use crate::config::Config;
use crate::extension::agents::DAEMONSET;
use crate::extension::facts::{ChartObject, Facts};
use crate::extension::objects::{AgentDaemonSet, ConfigMap};
use crate::extension::report::Check;

/// Key of the ConfigMap with the template of the plugin entry.
pub const ENTRY_KEY: &str = "cni_network_config";

/// Remedy for a missing object.
const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

pub fn checks(facts: &Facts) -> Vec<Check> {
    let name = &facts.namespace;
    let has_pods = facts.agents.as_ref().is_ok_and(|agents| !agents.is_empty());
    let description = format!("namespace {name} admits the agent's pods");
    let security = Check::new(CHART, "namespace", description);
    if is_absent(facts) {
        let why = format!(
            "no object of the chart exists in namespace {name}; install the chart with helm install or \
             scripts/install-cni | kubectl apply -f -, or name its namespace with --cni-namespace"
        );
        return vec![Check::new(CHART, "daemonset", "the chart is installed").error(why)];
    }
    let mut checks = vec![pod_security(security, name, &facts.namespace_object, has_pods)];
    checks.push(config(facts));
    checks.extend(facts.objects.iter().map(|object| chart_object(name, object)));
    checks.extend(rollout(facts));
    checks
}

/// Whether the chart is not installed. Each of its objects would be reported as missing.
fn is_absent(facts: &Facts) -> bool {
    let is_missing = |object: &ChartObject| matches!(object.found, Ok(None));
    matches!((&facts.daemonset, &facts.config), (Ok(None), Ok(None)))
        && facts.objects.iter().all(is_missing)
}

fn config(facts: &Facts) -> Check {
    let check =
        Check::new(CHART, "configmap", "linkerd-cni-config ConfigMap has a valid plugin entry");
    let name = format!("ConfigMap {}/linkerd-cni-config", facts.namespace);
    match &facts.config {
        Err(why) => unreadable(check, &name, why),
        Ok(None) => check.error(missing(&name)),
        Ok(Some(map)) => match plugin_entry(map) {
            Ok(_) => check,
            Err(why) => check.error(format!("{name}: {why}")),
        },
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

fn chart_object(namespace: &str, object: &ChartObject) -> Check {
    let ChartObject { kind, name, found } = object;
    let check = Check::new(CHART, "objects", format!("{name} {kind} exists"));
    match found {
        Ok(Some(())) => check,
        Ok(None) if kind.starts_with("Cluster") => check.error(missing(&format!("{kind} {name}"))),
        Ok(None) => check.error(missing(&format!("{kind} {namespace}/{name}"))),
        Err(why) => unreadable(check, &format!("{kind} {name}"), why),
    }
}

fn missing(object: &str) -> String {
    format!("{object} does not exist; {REINSTALL}")
}

fn rollout(facts: &Facts) -> Vec<Check> {
    let name = format!("{}/{DAEMONSET}", facts.namespace);
    let exists = Check::new(CHART, "daemonset", format!("{DAEMONSET} DaemonSet exists"));
    let daemonset = match &facts.daemonset {
        Ok(Some(daemonset)) => daemonset,
        Ok(None) => {
            let why = format!(
                "DaemonSet {name} does not exist; install the chart, or name its namespace with \
                 --cni-namespace"
            );
            return vec![exists.error(why)];
        }
        Err(why) => return vec![exists.error(unreadable_text(&format!("DaemonSet {name}"), why))],
    };
    vec![exists, rolled_out(&name, daemonset)]
}

fn rolled_out(name: &str, daemonset: &AgentDaemonSet) -> Check {
    let check = Check::new(CHART, "rollout", format!("{DAEMONSET} DaemonSet is rolled out"));
    let status = &daemonset.status;
    let wanted = status.desired_number_scheduled;
    let updated = status.updated_number_scheduled;
    if status.observed_generation < daemonset.metadata.generation {
        return check
            .pending(format!("Kubernetes has not processed the newest change of {name} yet"));
    }
    match wanted {
        0 => check.error(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        )),
        wanted if updated < wanted => check.pending(format!(
            "{updated} of {wanted} nodes have a pod of the newest revision of {name}"
        )),
        _ => check,
    }
}
