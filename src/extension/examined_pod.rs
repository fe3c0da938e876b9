//! The plugin's verdict on one pod of the cluster, and the pod's paths around the proxy, for
//! `linkerd cni explain` and `linkerd cni bypass`. All objects are read as they are now.
//!
//! The plugin reads objects with rights of its own. So if the user may not read an object, the
//! verdict is unknown, and not that the plugin fails.

use super::release::{CalledFor, Release};
use crate::cluster_lookup::{ClusterLookup, complete_facts, pod_error};
use crate::cni::args::PodRef;
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
    fn unmeshed(reason: SkipReason, verdict: Verdict) -> ExaminedPod {
        ExaminedPod { unmeshed: Some(reason), verdict, paths: Vec::new() }
    }

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
    let config = &release.config;
    let pod = PodRef::from(&object.metadata);
    let observed = Observed::read(&object);
    let call = Call::from_release(release, &object);
    let facts = match object_facts(object) {
        Ok(facts) => facts,
        Err(problem) => {
            let reason = pod_error(problem, &pod).msg;
            let paths = vec![unknown_path(&reason)];
            return ExaminedPod { unmeshed: None, verdict: Verdict::Undecided(reason), paths };
        }
    };
    let view = match (&call, &facts) {
        (Call::None(reason), _) => PodView::NotCalled(*reason),
        (_, Decision::Skip(reason)) => PodView::Skip(*reason),
        (_, Decision::Redirect(_)) => PodView::Incomplete,
    };
    let object_verdict = verdict(config, &pod, view);
    let object_facts = match facts {
        Decision::Skip(reason) => return ExaminedPod::unmeshed(reason, object_verdict),
        Decision::Redirect(object_facts) => object_facts,
    };
    if !matches!(object_verdict, Verdict::Undecided(_)) {
        // The object alone decides, so no other object is read.
        let facts = &object_facts.facts;
        return add_paths(release, object_verdict, &object_facts, facts, &observed);
    }
    let complete_facts = match call {
        Call::Unknown(reason) => Err(reason),
        Call::Yes | Call::None(_) => read_facts(&object_facts, &pod, lookup),
    };
    match complete_facts {
        Ok(facts) => {
            let verdict = verdict(config, &pod, PodView::Complete(&facts));
            add_paths(release, verdict, &object_facts, &facts, &observed)
        }
        Err(reason) => {
            let verdict = Verdict::Undecided(reason);
            add_paths(release, verdict, &object_facts, &object_facts.facts, &observed)
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
}

/// Returns the complete facts, or why they are unknown. Without the API server's Service, the
/// plugin uses default ports. But the plugin may be able to read the Service when the user is not,
/// so a failed read by the user makes the facts unknown.
fn read_facts(
    object_facts: &ObjectFacts,
    pod: &PodRef,
    lookup: &mut impl ClusterLookup,
) -> Result<PodFacts, String> {
    if object_facts.is_control_plane
        && let Err(error) = lookup.api_service()
    {
        return Err(error.msg);
    }
    match complete_facts(object_facts, &pod.namespace, lookup) {
        Ok(facts) => Ok(facts),
        Err(error) => Err(error.msg),
    }
}

/// Completes the verdict on a meshed pod with the pod's paths around the proxy.
fn add_paths(
    release: &Release,
    verdict: Verdict,
    object_facts: &ObjectFacts,
    facts: &PodFacts,
    observed: &Observed,
) -> ExaminedPod {
    let paths = bypass_paths(&release.config, &verdict, object_facts, facts, observed);
    ExaminedPod { unmeshed: None, verdict, paths }
}
