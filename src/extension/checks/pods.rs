//! Checks of meshed pods. Pure.

use super::{PODS, readable};
use crate::config::bypass::Reason;
use crate::extension::agents::Agent;
use crate::extension::api::Error;
use crate::extension::facts::Facts;
use crate::extension::objects::InjectedPod;
use crate::extension::report::{Check, Severity, Verdict};
use crate::repair::stranded::{FoundBy, StrandedPod};

pub fn checks(facts: &Facts) -> Vec<Check> {
    let check = |hint, description, verdict| Check::new(PODS, hint, description, verdict);
    let multus = facts.multus_pods.as_ref();
    let multus = multus.map(|pods| {
        check("multus", "Multus calls the plugin for all injected pods", attached(pods))
    });
    let mut checks = vec![
        check("stranded", "no meshed pod started without redirect rules", stranded(facts)),
        check("proxy-user", "no container runs as the proxy's user", proxy_user(facts)),
        check("ipv6", "all IP families of the cluster are redirected", ipv6(facts)),
    ];
    checks.extend(multus);
    checks
}

fn attached(pods: &Result<Vec<InjectedPod>, Error>) -> Verdict {
    let pods = readable(pods, "the injected pods")?.iter();
    let lacking: Vec<String> =
        pods.filter(|pod| pod.lacks_attachment).map(|pod| pod.name.clone()).collect();
    Severity::Error.if_any(
        "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, so without \
         redirect rules; add it to their workloads, or set networkAttachmentDefinition.annotatePods \
         and restart them",
        &lacking,
    )
}

fn stranded(facts: &Facts) -> Verdict {
    let pods = readable(&facts.pending_pods, "the pods in phase Pending")?.iter();
    let stranded: Vec<String> = pods
        .filter_map(|pod| StrandedPod::found(pod, FoundBy::Validator))
        .map(|pod| format!("{}/{} on {}", pod.namespace, pod.name, pod.node))
        .collect();
    Severity::Error.if_any(
        "pods that started before the plugin was installed on their node; delete them, or enable \
         repairController",
        &stranded,
    )
}

fn proxy_user(facts: &Facts) -> Verdict {
    let summary = "pods with a container that bypasses the proxy; linkerd cni bypass names them";
    counted(facts, Reason::ProxyUser, summary)
}

fn ipv6(facts: &Facts) -> Verdict {
    let summary = "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart \
                   and in the control plane, and restart the pods";
    counted(facts, Reason::Ipv6, summary)
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
