//! The checks of `linkerd cni check`: facts to results. Pure.

mod chart;
mod cluster;
mod nodes;
mod pods;
mod pre;
#[cfg(test)]
mod tests;

use super::api::Error;
use super::facts::Facts;
use super::report::{Check, Problem, Severity};

pub use chart::plugin_entry;
pub use pre::checks as before_install;

/// Headings of the groups of checks.
const CHART: &str = "linkerd-cni";
const NODES: &str = "linkerd-cni-nodes";
const PODS: &str = "linkerd-cni-pods";
const PRE: &str = "linkerd-cni-pre";

/// Checks an installed chart. Without a DaemonSet, checks of nodes would only repeat that.
///
/// `linkerd check` runs these checks on every cluster, also on those that do not use the plugin.
pub fn installed(facts: &Facts) -> Vec<Check> {
    if matches!(facts.daemonset, Ok(None)) && facts.control_plane_uses_cni == Some(false) {
        let unused = "not installed, and not needed: cniEnabled of the control plane is false";
        return vec![Check::new(CHART, "daemonset", unused, Ok(()))];
    }
    let mut checks = chart::checks(facts);
    if let Ok(Some(daemonset)) = &facts.daemonset {
        checks.extend(nodes::checks(facts, daemonset));
        checks.push(cluster::cilium(NODES, &facts.cilium));
        checks.extend(pods::checks(facts));
    }
    checks
}

/// Returns a fact; if it cannot be read, the check warns.
fn readable<'f, T>(fact: &'f Result<T, Error>, what: &str) -> Result<&'f T, Problem> {
    match fact {
        Ok(fact) => Ok(fact),
        Err(why) => Severity::Warning.unreadable(what, why),
    }
}
