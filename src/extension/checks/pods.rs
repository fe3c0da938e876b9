//! Checks of meshed pods. Pure.

use super::{PODS, plugin_entry, readable};
use crate::agent::metrics::PluginCounts;
use crate::extension::api::Error;
use crate::extension::facts::Facts;
use crate::extension::objects::InjectedPod;
use crate::extension::report::{Check, Severity, Verdict};
use crate::redirect::Ipv6;
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

/// Judges by the agents' counters: reading all pods of the cluster would cost too much.
fn proxy_user(facts: &Facts) -> Verdict {
    Severity::Warning.if_any(
        "pods with a container that bypasses the proxy, since the agent started; the Events \
         LinkerdCNIProxyUserShared name them",
        &counted(facts, |calls| calls.exempt_containers),
    )
}

fn counted(facts: &Facts, count: fn(&PluginCounts) -> u64) -> Vec<String> {
    let counts = facts.agents.iter().flatten();
    let counts = counts.filter_map(|agent| Some((agent.node(), count(&agent.body()?.calls))));
    let counted = counts.filter(|(_, count)| *count > 0);
    counted.map(|(node, count)| format!("{node}: {count} pods")).collect()
}

/// Fails for pods that the agents counted, else for nodes whose pods have IPv6 addresses.
fn ipv6(facts: &Facts) -> Verdict {
    Severity::Warning.if_any(
        "pods whose IPv6 traffic bypasses the proxy, which listens on IPv4 only, since the agent \
         started; set disableIPv6=false in the control plane and restart the pods",
        &counted(facts, |calls| calls.ipv6_bypass),
    )?;
    let entry = facts.config.iter().flatten().map(plugin_entry).next();
    if !entry.is_some_and(|entry| entry.is_ok_and(|entry| entry.ipv6 == Ipv6::No)) {
        return Ok(());
    }
    let nodes = facts.nodes.iter().flatten();
    let nodes = nodes.filter(|node| node.pod_cidrs.iter().any(|cidr| cidr.contains(':')));
    let nodes = nodes.map(|node| {
        let addresses = node.pod_cidrs.join(", ");
        format!("{}: pods have addresses of {addresses}", node.name)
    });
    Severity::Warning.if_any(
        "IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart and in the control plane",
        &nodes.collect::<Vec<_>>(),
    )
}
