//! `linkerd cni explain`: what the plugin decides for one pod, and what is known of the rules that
//! the pod has. The plugin's own code decides here, too, from the objects as they are now.

mod render;
#[cfg(test)]
mod tests;

use super::cached_lookup::CachedLookup;
use super::examined_pod::{ExaminedPod, examine};
use super::facts;
use super::release::Release;
use super::report::{Problem, Severity};
use super::requests::{Api, get_optional};
use super::rules_now::{PodRules, RulesNow};
use crate::cni::args::is_name;
use crate::config::Config;
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::skip::skipped_by_annotations;
use crate::quote::quote;
use crate::verdict::Verdict;
use crate::verdict::outcome::Outcome;

pub use render::{json, text};

/// What the plugin decides for a pod, and what is known of the pod's rules.
pub struct Explanation {
    config: Config,
    namespace: String,
    name: String,
    /// Empty before the pod is scheduled.
    node: String,
    /// Whether annotations show that the pod has a proxy.
    is_annotated: bool,
    examined: ExaminedPod,
    /// Why it is unknown whether the plugin is called for the pod.
    unknown_call: Option<String>,
    /// What is known of the rules of a redirected pod.
    rules: PodRules,
}

impl Explanation {
    /// Returns whether the pod gets the redirect that it needs, and also has its rules if it runs.
    pub fn outcome(&self) -> Outcome {
        let mut outcomes = vec![self.examined.outcome()];
        if self.unknown_call.is_some() {
            outcomes.push(Outcome::Unknown);
        }
        match &self.rules {
            PodRules::NotReported => {}
            PodRules::Missing(_) => outcomes.push(Outcome::Wrong),
            PodRules::Unknown(_) => outcomes.push(Outcome::Unknown),
        }
        Outcome::worst(outcomes)
    }
}

/// Explains what the plugin decides for the pod. The agent's DaemonSet is in `cni_namespace`.
/// Fails if the pod or the plugin entry cannot be read. The error names the object and the remedy.
pub fn explain(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: &str,
    name: &str,
) -> Result<Explanation, Problem> {
    for text in [cni_namespace, namespace, name] {
        if !is_name(text) {
            let text = quote(text);
            return Severity::Error.fail(format!("{text} is not the name of a pod or namespace"));
        }
    }
    let parent = namespace_path(namespace);
    let found = get_optional(api, &format!("{parent}/pods/{name}"));
    let what = format!("pod {namespace}/{name}");
    let remedy = "name its namespace with --namespace";
    let pod: Pod = facts::require_existing(found, &what, remedy)?;
    let release = Release::read(api, cni_namespace)?;
    let rules_now = RulesNow::fetch(api, cni_namespace, &parent);
    let rules = rules_now.pod_rules(&pod);
    let unknown_call = rules_now.unknown_call_reason(&pod);
    let mut explanation = Explanation {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        node: pod.spec.node_name.clone(),
        is_annotated: skipped_by_annotations(&pod.metadata.annotations).is_none(),
        examined: examine(&release, pod, &mut CachedLookup::new(api)),
        config: release.config,
        unknown_call: None,
        rules: PodRules::NotReported,
    };
    // If the plugin installs no rules in the pod, none can be missing, so the reports are left out.
    if let Verdict::Redirected(_) = explanation.examined.verdict {
        explanation.unknown_call = unknown_call;
        explanation.rules = rules;
    }
    Ok(explanation)
}
