//! The report of `linkerd cni bypass`: the paths on which traffic of meshed pods bypasses the
//! proxy, or may bypass it. Pods, namespaces and plugin entry are read as they are now.

mod render;
#[cfg(test)]
mod tests;

use super::cached_lookup::CachedLookup;
use super::examined_pod::{ExaminedPod, examine};
use super::facts::require_readable;
use super::release::Release;
use super::report::{Problem, Severity};
use super::requests::{Api, for_each_item};
use super::rules_now::{PodRules, RulesNow};
use crate::cni::args::is_name;
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::skip::SkipReason;
use crate::quote::quote;
use crate::verdict::Verdict;
use crate::verdict::bypass_paths::BypassPath;
use crate::verdict::outcome::Outcome;
use crate::verdict::reason::Reason;

pub use render::{json, path_json, table};

#[derive(Debug, Default)]
pub struct BypassReport {
    /// The meshed pods.
    pods: Vec<ReportedPod>,
    /// Number of pods whose rules `linkerd-init` installs. Such pods are not examined.
    with_init: usize,
}

#[derive(Debug)]
struct ReportedPod {
    namespace: String,
    name: String,
    paths: Vec<BypassPath>,
}

impl BypassReport {
    /// Returns the worst outcome of all pods. The outcome is right if no traffic bypasses a proxy,
    /// apart from the traffic that bypasses every proxy. If a pod has `linkerd-init`, the outcome
    /// is unknown or worse, because such pods are not examined.
    pub fn outcome(&self) -> Outcome {
        let worst = Outcome::worst(self.pods.iter().map(ReportedPod::outcome));
        if self.with_init > 0 { worst.max(Outcome::Unknown) } else { worst }
    }

    /// Returns the number of pods with this outcome.
    fn count(&self, outcome: Outcome) -> usize {
        self.pods.iter().filter(|pod| pod.outcome() == outcome).count()
    }

    /// Adds a meshed pod, and counts a pod with `linkerd-init`. Ignores other pods.
    fn add(
        &mut self,
        pod: Pod,
        release: &Release,
        rules: &RulesNow,
        lookup: &mut CachedLookup<'_>,
    ) {
        let namespace = pod.metadata.namespace.clone();
        let name = pod.metadata.name.clone();
        let pod_rules = rules.pod_rules(&pod);
        let examined = examine(release, pod, lookup);
        match examined.unmeshed {
            None => {
                let paths = reported_paths(examined, pod_rules);
                self.pods.push(ReportedPod { namespace, name, paths });
            }
            Some(SkipReason::ProxyInit) => self.with_init += 1,
            Some(_) => {}
        }
    }
}

impl ReportedPod {
    fn outcome(&self) -> Outcome {
        Outcome::worst(self.paths.iter().map(|path| path.reason.outcome()))
    }
}

/// Reads the pods of `namespace`, or of all namespaces for `None`, and finds their paths around the
/// proxy. Fails if the pods or the plugin entry cannot be read. The error names the remedy.
pub fn fetch(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: Option<&str>,
) -> Result<BypassReport, Problem> {
    let parent = match namespace {
        Some(text) if !is_name(text) => {
            return Severity::Error.fail(format!("{} is not the name of a namespace", quote(text)));
        }
        Some(namespace) => namespace_path(namespace),
        None => "/api/v1".to_owned(),
    };
    let release = Release::read(api, cni_namespace)?;
    let rules = RulesNow::fetch(api, cni_namespace, &parent);
    let mut lookup = CachedLookup::new(api);
    let mut report = BypassReport::default();
    let pods = for_each_item(api, &format!("{parent}/pods"), "", |pod: Pod| {
        if !pod.status.has_ended() {
            report.add(pod, &release, &rules, &mut lookup);
        }
    });
    require_readable(&pods, "the pods")?;
    Ok(report)
}

/// Returns the paths of a meshed pod around the proxy.
fn reported_paths(pod: ExaminedPod, rules: PodRules) -> Vec<BypassPath> {
    let mut paths = pod.paths;
    let has_no_rules = matches!(pod.verdict, Verdict::NotCalled(_) | Verdict::Skipped(_));
    if has_no_rules {
        // No rule can be missing, so what is reported of the rules is ignored.
        return paths;
    }
    match rules {
        PodRules::NotReported => {}
        PodRules::Missing(note) => paths.push(BypassPath::new(Reason::RulesMissing, note)),
        PodRules::Unknown(reason) => paths.push(BypassPath::new(Reason::RulesUnknown, reason)),
    }
    paths
}
