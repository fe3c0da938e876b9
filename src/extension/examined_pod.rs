//! The plugin's verdict on one pod of the cluster, and the pod's paths around the proxy, for
//! `linkerd cni explain` and `linkerd cni bypass`. All objects are read as they are now.
//!
//! The plugin reads objects with rights of its own. So if the user may not read an object, the
//! verdict is unknown, and not that the plugin fails.

use super::release::{CalledFor, Release};
use crate::cluster_lookup::{ClusterLookup, complete_facts, pod_error};
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, PodFacts, object_facts};
use crate::pod::multus::is_attached;
use crate::pod::observed::Observed;
use crate::pod::skip::SkipReason;
use crate::verdict::bypass_paths::{BypassPath, bypass_paths, unknown_path};
use crate::verdict::outcome::Outcome;
use crate::verdict::{NotCalled, PodView, Verdict, verdict};

/// What the plugin does with a pod.
pub struct ExaminedPod {
    /// Why the pod's containers need no redirect. `None` for a meshed pod.
    pub unmeshed: Option<SkipReason>,
    pub verdict: Verdict,
    /// The paths around the proxy of a meshed pod.
    pub paths: Vec<BypassPath>,
}

impl ExaminedPod {
    /// Returns whether the pod gets the redirect that it needs: rules for a meshed pod, and no
    /// rules for another pod.
    pub fn outcome(&self) -> Outcome {
        if self.unmeshed.is_some() {
            return Outcome::Right;
        }
        match &self.verdict {
            Verdict::Redirected(_) => Outcome::Right,
            Verdict::Undecided(_) => Outcome::Unknown,
            Verdict::NotCalled(_)
            | Verdict::Skipped(_)
            | Verdict::Refused(..)
            | Verdict::Failed(_) => Outcome::Wrong,
        }
    }
}

/// Decides what the plugin does with the pod, as ADD does when ADD knows the pod's containers. If
/// the user cannot read an object on which the decision depends, the verdict is
/// [`Verdict::Undecided`]. Looks up no other object if the pod's network, name or containers
/// already decide.
pub fn examine(release: &Release, object: Pod, lookup: &mut impl ClusterLookup) -> ExaminedPod {
    let name = PodRef::from(&object.metadata);
    let observed = Observed::read(&object);
    let call = Call::from_release(release, &object);
    match object_facts(object) {
        Ok(Decision::Redirect(object_facts)) => {
            let pod = MeshedPod { name, call, object_facts, observed };
            examine_meshed_pod(&release.config, &pod, lookup)
        }
        Ok(Decision::Skip(reason)) => {
            let view = call.view_or(PodView::Skip(reason));
            let verdict = verdict(&release.config, &name, view);
            ExaminedPod { unmeshed: Some(reason), verdict, paths: Vec::new() }
        }
        Err(problem) => {
            let reason = pod_error(problem, &name).msg;
            let paths = vec![unknown_path(&reason)];
            ExaminedPod { unmeshed: None, verdict: Verdict::Undecided(reason), paths }
        }
    }
}

/// What the object of a meshed pod says.
struct MeshedPod {
    name: PodRef,
    call: Call,
    object_facts: ObjectFacts,
    observed: Observed,
}

fn examine_meshed_pod(
    config: &Config,
    pod: &MeshedPod,
    lookup: &mut impl ClusterLookup,
) -> ExaminedPod {
    let object_verdict = verdict(config, &pod.name, pod.call.view_or(PodView::Incomplete));
    let does_object_decide = !matches!(object_verdict, Verdict::Undecided(_));
    if does_object_decide {
        return add_paths(config, object_verdict, pod, &pod.object_facts.facts);
    }
    match read_facts(pod, lookup) {
        Ok(facts) => {
            let verdict = verdict(config, &pod.name, PodView::Complete(&facts));
            add_paths(config, verdict, pod, &facts)
        }
        Err(reason) => {
            let verdict = Verdict::Undecided(reason);
            add_paths(config, verdict, pod, &pod.object_facts.facts)
        }
    }
}

/// Whether the plugin is called for a pod.
enum Call {
    Yes,
    None(NotCalled),
    Unknown(String),
}

impl Call {
    fn from_release(release: &Release, pod: &Pod) -> Call {
        if pod.spec.host_network {
            return Call::None(NotCalled::HostNetwork);
        }
        if is_attached(pod) {
            return Call::Yes;
        }
        match &release.called_for {
            CalledFor::EveryPod => Call::Yes,
            CalledFor::AttachedPods => Call::None(NotCalled::NotAttached),
            CalledFor::Unknown(reason) => Call::Unknown(reason.clone()),
        }
    }

    /// Returns that the plugin is not called, or else `view`.
    fn view_or<'v>(&self, view: PodView<'v>) -> PodView<'v> {
        match self {
            Call::None(why) => PodView::NotCalled(*why),
            Call::Yes | Call::Unknown(_) => view,
        }
    }
}

/// Returns the complete facts, or why the plugin's verdict is unknown. Without the API server's
/// Service, the plugin uses default ports. But the plugin may be able to read the Service when the
/// user is not, so a failed read by the user makes the facts unknown.
fn read_facts(pod: &MeshedPod, lookup: &mut impl ClusterLookup) -> Result<PodFacts, String> {
    if let Call::Unknown(reason) = &pod.call {
        return Err(reason.clone());
    }
    if pod.object_facts.is_control_plane
        && let Err(error) = lookup.api_service()
    {
        return Err(error.msg);
    }
    match complete_facts(&pod.object_facts, &pod.name.namespace, lookup) {
        Ok(facts) => Ok(facts),
        Err(error) => Err(error.msg),
    }
}

/// Completes the verdict on a meshed pod with the pod's paths around the proxy.
fn add_paths(config: &Config, verdict: Verdict, pod: &MeshedPod, facts: &PodFacts) -> ExaminedPod {
    let paths = bypass_paths(config, &verdict, &pod.object_facts, facts, &pod.observed);
    ExaminedPod { unmeshed: None, verdict, paths }
}
