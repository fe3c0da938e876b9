//! `linkerd cni explain`: what the plugin decides for one pod, by the same code, from the objects as they
//! are now.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::facts;
use super::report::{Problem, Severity};
use super::requests::{Api, Error, find, get};
use crate::cni::Error as CniError;
use crate::cni::args::{PodRef, is_name};
use crate::config::bypass::Bypass;
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Namespace, Pod, Service};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::containers::has_ipv6_address;
use crate::pod::facts::{ClusterLookup, own_facts};
use crate::pod::skip::skipped_by_annotations;
use crate::quote::quote;
use crate::redirect::rules::{marked_rules, rule_line};
use crate::redirect::{Family, Ipv6, Redirect};

/// Printed for a pod with a proxy that its annotations do not show.
const UNANNOTATED: &str = "Note:      the pod has no annotation of a proxy: the plugin skips it \
                           while no agent runs on its node\n";

/// Answers the plugin's look-ups from objects that are each read once.
pub struct Lookup<'a> {
    api: &'a dyn Api,
    namespaces: BTreeMap<String, Result<Annotations, CniError>>,
    service: Option<Result<Service, CniError>>,
}

impl<'a> Lookup<'a> {
    pub fn new(api: &'a dyn Api) -> Self {
        Lookup { api, namespaces: BTreeMap::new(), service: None }
    }
}

impl ClusterLookup for Lookup<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, CniError> {
        let read = || {
            let found: Namespace = get(self.api, &namespace_path(name)).map_err(unreadable)?;
            Ok(found.metadata.annotations)
        };
        self.namespaces.entry(name.to_owned()).or_insert_with(read).clone()
    }

    fn api_service(&mut self) -> Result<Service, CniError> {
        let read = || get(self.api, API_SERVICE).map_err(unreadable);
        self.service.get_or_insert_with(read).clone()
    }
}

/// Decides as the plugin does for an ADD if it knows the pod's containers.
/// Fails with the plugin's error, with which the pod cannot start.
fn decide(
    config: &Config,
    object: Pod,
    lookup: &mut Lookup<'_>,
) -> Result<Decision<(ResolvedRedirect, Vec<Bypass>)>, CniError> {
    let pod = PodRef::from(&object.metadata);
    if let Some(reason) = config.filter.skip_reason(&pod) {
        return Ok(Decision::Skip(reason));
    }
    let has_ipv6 = has_ipv6_address(&object);
    let own = match own_facts(object).map_err(|problem| problem.of(&pod))? {
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        Decision::Redirect(own) => own,
    };
    let facts = own.complete(&pod.namespace, lookup)?;
    let resolved = config.resolve(&facts)?;
    config.refusal(&resolved).map_or(Ok(()), Err)?;
    let bypasses = config.bypasses(&pod, &own, &facts, has_ipv6)?;
    Ok(Decision::Redirect((resolved, bypasses)))
}

/// Explains what the plugin decides for the pod. `cni_namespace` has the agent's DaemonSet.
/// Fails if the pod or the plugin entry cannot be read, with object and remedy.
pub fn explain(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: &str,
    name: &str,
) -> Result<String, Problem> {
    if let Some(text) = [cni_namespace, namespace, name].into_iter().find(|text| !is_name(text)) {
        let text = quote(text);
        return Severity::Error.because(format!("{text} is not the name of a pod or namespace"));
    }
    let found = find(api, &format!("/api/v1/namespaces/{namespace}/pods/{name}"));
    let (what, remedy) = (format!("pod {namespace}/{name}"), "name its namespace with --namespace");
    let pod: Pod = facts::existing(found, Severity::Error, &what, remedy)?;
    let config = facts::config(api, cni_namespace)?;
    // The runtime calls no plugin for a pod in the node's network namespace.
    let is_called = !pod.spec.host_network;
    let decision = is_called.then(|| decide(&config, pod.clone(), &mut Lookup::new(api)));
    let mut text = describe(&pod, decision.as_ref());
    if let Some(Ok(Decision::Redirect((resolved, bypasses)))) = &decision {
        if skipped_by_annotations(&pod.metadata.annotations).is_some() {
            text.push_str(UNANNOTATED);
        }
        redirect(&mut text, &config, resolved, bypasses);
    }
    Ok(text)
}

/// The error of a failed request, as the plugin would report it.
fn unreadable(error: Error) -> CniError {
    CniError::new(Failure::ApiError, error.to_string())
}

fn describe<T>(pod: &Pod, decision: Option<&Result<Decision<T>, CniError>>) -> String {
    let node = match pod.spec.node_name.as_str() {
        "" => "not scheduled",
        node => node,
    };
    let (title, why) = match decision {
        None => (
            "not redirected: the plugin is not called",
            "spec.hostNetwork is true: the pod uses the node's network namespace".to_owned(),
        ),
        Some(Ok(Decision::Skip(reason))) => {
            ("not redirected: the plugin skips the pod", reason.text().to_owned())
        }
        Some(Ok(Decision::Redirect(_))) => (
            "redirected to the proxy",
            "the pod has a container linkerd-proxy and no linkerd-init".to_owned(),
        ),
        Some(Err(error)) => (
            "the plugin fails, and the pod cannot start",
            format!("{} (code {})\nRemedy:    {}", error.msg, error.failure.code(), error.details),
        ),
    };
    format!(
        "Pod:       {}/{}\nNode:      {node}\nDecision:  {title}\nWhy:       {why}\n",
        pod.metadata.namespace, pod.metadata.name,
    )
}

/// Returns the redirected IP families, and why IPv6 is redirected or not.
fn families(configured: Ipv6, resolved: Ipv6) -> (&'static [Family], &'static str) {
    let [ipv4, both]: [&[Family]; 2] = [&[Family::Ipv4], &[Family::Ipv4, Family::Ipv6]];
    match (configured, resolved) {
        (_, Ipv6::Yes) => (both, "yes (disableIPv6=false)"),
        (_, Ipv6::Auto) => (both, "yes (ipv6: auto, if the node's kernel has IPv6)"),
        (Ipv6::Auto, _) => (ipv4, "no (ipv6: auto, and the proxy listens on IPv4 only)"),
        _ => (ipv4, "no (disableIPv6=true)"),
    }
}

fn redirect(text: &mut String, config: &Config, resolved: &ResolvedRedirect, bypasses: &[Bypass]) {
    let (families, ipv6) = families(config.ipv6, resolved.ipv6);
    // Writing to a String cannot fail.
    let Redirect { inbound_port, outbound_port, .. } = resolved.redirect;
    let _ = writeln!(text, "Ports:     inbound {inbound_port}, outbound {outbound_port}");
    let _ = writeln!(text, "IPv6:      {ipv6}");
    for list in &resolved.ignored {
        let _ = writeln!(text, "Warning:   {list}; expected {}", list.grammar());
    }
    for Bypass { reason, detail, cause } in bypasses {
        let cause = cause.map(|(kind, key)| format!(" ({kind}: {key})")).unwrap_or_default();
        let _ = writeln!(text, "Bypass:    {} {detail}{cause}", reason.label());
    }
    text.push_str("\nRules, as the plugin would install them now, in the form of iptables-save:\n");
    for &family in families {
        let _ = writeln!(text, "\n{family:?}:");
        for rule in marked_rules(&resolved.redirect, family, families) {
            let _ = writeln!(text, "{}", rule_line(&rule));
        }
    }
}
