//! `linkerd cni explain`: what the plugin decides for one pod, by the same code, from the objects
//! as they are now.

#[cfg(test)]
mod tests;

use super::examined_pod::{CachedLookup, ExaminedPod, examine};
use super::facts;
use super::report::{Problem, Severity};
use super::requests::{Api, find};
use crate::cni::Error as CniError;
use crate::cni::args::is_name;
use crate::config::{Config, ResolvedRedirect};
use crate::kube::types::Pod;
use crate::pod::skip::skipped_by_annotations;
use crate::quote::quote;
use crate::redirect::rules::{marked_rules, rule_line};
use crate::redirect::{Family, Ipv6, Redirect};
use crate::verdict::Verdict;
use crate::verdict::bypass_paths::BypassPath;

/// Printed for a pod that has a proxy container and no annotation of a proxy.
const UNANNOTATED: &str = "Note:      the pod has no annotation of a proxy: the plugin skips it \
                           while no agent runs on its node\n";

/// Explains what the plugin decides for the pod. `cni_namespace` has the agent's DaemonSet.
/// Fails if the pod or the plugin entry cannot be read, with object and remedy.
pub fn explain(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: &str,
    name: &str,
) -> Result<String, Problem> {
    for text in [cni_namespace, namespace, name] {
        if !is_name(text) {
            let text = quote(text);
            return Severity::Error
                .because(format!("{text} is not the name of a pod or namespace"));
        }
    }
    let found = find(api, &format!("/api/v1/namespaces/{namespace}/pods/{name}"));
    let (what, remedy) = (format!("pod {namespace}/{name}"), "name its namespace with --namespace");
    let pod: Pod = facts::existing(found, &what, remedy)?;
    let config = facts::read_config(api, cni_namespace)?;
    let is_annotated = skipped_by_annotations(&pod.metadata.annotations).is_none();
    let mut text = describe_pod(&pod);
    let ExaminedPod { verdict, paths, .. } = examine(&config, pod, &mut CachedLookup::new(api));
    text.push_str(&describe_verdict(&verdict));
    if let Verdict::Redirected(resolved) = &verdict {
        if !is_annotated {
            text.push_str(UNANNOTATED);
        }
        text.push_str(&describe_redirect(&config, resolved, &paths));
    }
    Ok(text)
}

/// Names the pod and its node.
fn describe_pod(pod: &Pod) -> String {
    let node = match pod.spec.node_name.as_str() {
        "" => "not scheduled",
        node => node,
    };
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    format!("Pod:       {namespace}/{name}\nNode:      {node}\n")
}

/// Describes the verdict, and its reason.
fn describe_verdict(verdict: &Verdict) -> String {
    let (title, why) = match verdict {
        Verdict::NotCalled => (
            "not redirected: the plugin is not called",
            "spec.hostNetwork is true: the pod uses the node's network namespace".to_owned(),
        ),
        Verdict::Skipped(reason) => {
            ("not redirected: the plugin skips the pod", reason.text().to_owned())
        }
        Verdict::Redirected(_) => (
            "redirected to the proxy",
            "the pod has a container linkerd-proxy and no linkerd-init".to_owned(),
        ),
        Verdict::Refused(refusal, _) => {
            ("the plugin fails, and the pod cannot start", describe_error(&refusal.error()))
        }
        Verdict::Failed(error) => {
            ("the plugin fails, and the pod cannot start", describe_error(error))
        }
        Verdict::Undecided => ("unknown", "facts about the pod are missing".to_owned()),
    };
    format!("Decision:  {title}\nWhy:       {why}\n")
}

fn describe_error(error: &CniError) -> String {
    format!("{} (code {})\nRemedy:    {}", error.msg, error.failure.code(), error.details)
}

/// Returns the redirected IP families, and why IPv6 is redirected or not.
fn families(configured: Ipv6, resolved: Ipv6) -> (&'static [Family], &'static str) {
    match (configured, resolved) {
        (_, Ipv6::Yes) => (Family::ALL, "yes (disableIPv6=false)"),
        (_, Ipv6::Auto) => (Family::ALL, "yes (ipv6: auto, if the node's kernel has IPv6)"),
        (Ipv6::Auto, _) => (Family::IPV4, "no (ipv6: auto, and the proxy listens on IPv4 only)"),
        _ => (Family::IPV4, "no (disableIPv6=true)"),
    }
}

/// Describes the redirect: ports, families, ignored elements, paths around the proxy, and rules.
fn describe_redirect(config: &Config, resolved: &ResolvedRedirect, paths: &[BypassPath]) -> String {
    let (families, ipv6) = families(config.ipv6, resolved.ipv6);
    let Redirect { inbound_port, outbound_port, .. } = resolved.redirect;
    let mut text = format!("Ports:     inbound {inbound_port}, outbound {outbound_port}\n");
    text.push_str(&format!("IPv6:      {ipv6}\n"));
    for list in &resolved.ignored {
        text.push_str(&format!("Warning:   {list}; expected {}\n", list.grammar()));
    }
    for BypassPath { reason, detail, cause } in paths {
        let cause = match cause {
            Some((kind, key)) => format!(" ({kind}: {key})"),
            None => String::new(),
        };
        text.push_str(&format!("Bypass:    {} {detail}{cause}\n", reason.label()));
    }
    text.push_str("\nRules, as the plugin would install them now, in the form of iptables-save:\n");
    for &family in families {
        text.push_str(&format!("\n{family:?}:\n"));
        for rule in marked_rules(&resolved.redirect, family, families) {
            text.push_str(&format!("{}\n", rule_line(&rule)));
        }
    }
    text
}
