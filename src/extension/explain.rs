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
    let pod = read_pod(api, namespace, name)?;
    let release = Release::read(api, cni_namespace)?;
    let rules_now = RulesNow::fetch(api, cni_namespace, &namespace_path(namespace));
    let mut rules = rules_now.pod_rules(&pod);
    let mut unknown_call = rules_now.unknown_call_reason(&pod);
    let namespace = pod.metadata.namespace.clone();
    let name = pod.metadata.name.clone();
    let node = pod.spec.node_name.clone();
    let is_annotated = skipped_by_annotations(&pod.metadata.annotations).is_none();
    let examined = examine(&release, pod, &mut CachedLookup::new(api));
    let is_redirected = matches!(examined.verdict, Verdict::Redirected(_));
    if !is_redirected {
        // No rule can be missing, so the reports are left out.
        rules = PodRules::NotReported;
        unknown_call = None;
    }
    let config = release.config;
    Ok(Explanation { config, namespace, name, node, is_annotated, examined, unknown_call, rules })
}

fn read_pod(api: &dyn Api, namespace: &str, name: &str) -> Result<Pod, Problem> {
    let path = format!("{}/pods/{name}", namespace_path(namespace));
    let what = format!("pod {namespace}/{name}");
    let remedy = "name its namespace with --namespace";
    facts::require_existing(get_optional(api, &path), &what, remedy)
}
