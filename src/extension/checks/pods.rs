//! Checks of meshed pods. Pure.

use super::{PODS, unreadable};
use crate::config::Ipv6;
use crate::extension::checks::chart::plugin_entry;
use crate::extension::facts::Facts;
use crate::extension::metrics::sample;
use crate::extension::report::Check;
use crate::repair::stranded_pod::StrandedPod;

pub fn checks(facts: &Facts) -> Vec<Check> {
    vec![stranded(facts), proxy_user(facts), ipv6(facts)]
}

/// Checks that no pod waits without redirect rules.
fn stranded(facts: &Facts) -> Check {
    let check = Check::new(PODS, "stranded", "no meshed pod started without redirect rules");
    let pods = match &facts.pending_pods {
        Ok(pods) => pods,
        Err(why) => return unreadable(check, "the pods in phase Pending", why),
    };
    let stranded: Vec<String> = pods
        .iter()
        .filter_map(StrandedPod::by_validator)
        .map(|pod| format!("{}/{} on {}", pod.namespace, pod.name, pod.node))
        .collect();
    check.error_if_any(
        "pods that started before the plugin was installed on their node; delete them, or enable \
         repairController",
        &stranded,
    )
}

/// Checks that no pod started whose containers bypass the proxy as its user, by the agents' counters:
/// reading all pods of the cluster would cost too much.
fn proxy_user(facts: &Facts) -> Check {
    let check = Check::new(PODS, "proxy-user", "no container runs as the proxy's user");
    check.warning_if_any(
        "pods with a container that bypasses the proxy, since the agent started; the Events \
         LinkerdCNIProxyUserShared name them",
        &counted(facts, "linkerd_cni_plugin_pods_with_exempt_containers_total"),
    )
}

/// Returns each node whose agent has a sample of the `counter` of pods.
fn counted(facts: &Facts, counter: &str) -> Vec<String> {
    let agents = facts.agents.iter().flatten();
    let counted = agents.filter_map(|agent| {
        Some(format!("{}: {} pods", agent.node(), sample(&agent.metrics, counter)?))
    });
    counted.collect()
}

/// Checks that IPv6 is redirected if pods have IPv6 addresses.
fn ipv6(facts: &Facts) -> Check {
    let check = Check::new(PODS, "ipv6", "all IP families of the cluster are redirected");
    let ipv4_only = counted(facts, "linkerd_cni_plugin_pods_with_ipv6_bypass_total");
    if !ipv4_only.is_empty() {
        return check.warning_if_any(
            "pods whose IPv6 traffic bypasses the proxy, which listens on IPv4 only, since the agent \
             started; set disableIPv6=false in the control plane and restart the pods",
            &ipv4_only,
        );
    }
    let entry = facts.config.as_ref().ok().and_then(Option::as_ref).map(plugin_entry);
    let (Some(Ok(entry)), Ok(nodes)) = (entry, &facts.nodes) else {
        return check;
    };
    let has_ipv6 = |cidrs: &Vec<String>| cidrs.iter().any(|cidr| cidr.contains(':'));
    let nodes: Vec<String> = nodes
        .iter()
        .filter(|node| entry.ipv6 == Ipv6::No && has_ipv6(&node.spec.pod_cidrs))
        .map(|node| {
            format!(
                "{}: pods have addresses of {}",
                node.metadata.name,
                node.spec.pod_cidrs.join(", ")
            )
        })
        .collect();
    check.warning_if_any(
        "IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart and in the control plane",
        &nodes,
    )
}
