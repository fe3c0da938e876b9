//! Renders the decision for a pod. Pure.

use std::fmt::Write as _;

use super::{Explanation, NodeReport};
use crate::config::ResolvedRedirect;
use crate::config::bypass::Bypass;
use crate::pod::Decision;
use crate::pod::skip::skipped_by_annotations;
use crate::redirect::rules::{marked_rules, rule_line};
use crate::redirect::{Family, Ipv6, Redirect};

/// Printed for a pod with a proxy that its annotations do not show.
const UNANNOTATED: &str = "Note:      no annotation of the pod is that of a proxy: the plugin skips the pod \
                           while no agent runs on its node\n";

pub fn render(explanation: &Explanation) -> String {
    let metadata = &explanation.pod.metadata;
    let node = match explanation.pod.spec.node_name.as_str() {
        "" => "not scheduled",
        node => node,
    };
    let (title, why) = match &explanation.decision {
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
    let mut text = format!(
        "Pod:       {}/{}\nNode:      {node}\nDecision:  {title}\nWhy:       {why}\n",
        metadata.namespace, metadata.name,
    );
    if let Some(Ok(Decision::Redirect(resolved))) = &explanation.decision {
        if skipped_by_annotations(&metadata.annotations).is_some() {
            text.push_str(UNANNOTATED);
        }
        redirect(&mut text, explanation, resolved);
    }
    node_report(&mut text, &explanation.report);
    text
}

/// Returns the redirected IP families, and why IPv6 is redirected or not.
fn families(configured: Ipv6, resolved: Ipv6) -> (&'static [Family], &'static str) {
    const BOTH: &[Family] = &[Family::Ipv4, Family::Ipv6];
    match (configured, resolved) {
        (_, Ipv6::Yes) => (BOTH, "yes (disableIPv6=false)"),
        (_, Ipv6::Auto) => (BOTH, "yes (ipv6: auto, if the node's kernel has IPv6)"),
        (Ipv6::Auto, Ipv6::No) => {
            (&[Family::Ipv4], "no (ipv6: auto, and the proxy listens on IPv4 only)")
        }
        (_, Ipv6::No) => (&[Family::Ipv4], "no (disableIPv6=true)"),
    }
}

fn redirect(text: &mut String, explanation: &Explanation, resolved: &ResolvedRedirect) {
    let (families, ipv6) = families(explanation.config.ipv6, resolved.ipv6);
    // Writing to a String cannot fail.
    let Redirect { inbound_port, outbound_port, .. } = resolved.redirect;
    let _ = writeln!(text, "Ports:     inbound {inbound_port}, outbound {outbound_port}");
    let _ = writeln!(text, "IPv6:      {ipv6}");
    for list in &resolved.ignored {
        let _ = writeln!(text, "Warning:   {list}; expected {}", list.grammar());
    }
    for Bypass { reason, detail, cause } in &explanation.bypasses {
        let cause = cause.map(|(kind, key)| format!(" ({kind}: {key})")).unwrap_or_default();
        let _ = writeln!(text, "Bypass:    {} {detail}{cause}", reason.label());
    }
    if explanation.config.simulate {
        let _ = writeln!(
            text,
            "Warning:   simulate is true: the plugin logs the rules and installs none"
        );
    }
    text.push_str("\nRules, as the plugin would install them now, in the form of iptables-save:\n");
    for &family in families {
        let _ = writeln!(text, "\n{family:?}:");
        for rule in marked_rules(&resolved.redirect, family, families) {
            let _ = writeln!(text, "{}", rule_line(&rule));
        }
    }
}

fn node_report(text: &mut String, report: &NodeReport) {
    text.push_str("\nReported by the node:\n");
    match &report.agent {
        Some((name, state)) => {
            let _ = writeln!(text, "  agent {name}: {state}");
        }
        None => text.push_str("  no agent runs on the pod's node\n"),
    }
    for record in &report.records {
        let _ = writeln!(text, "  log: {record}");
    }
    if report.agent.is_some() && report.records.is_empty() {
        text.push_str(
            "  the agent's log has no plugin call for the pod: it may have started without the plugin\n",
        );
    }
    for event in &report.events {
        let _ = writeln!(text, "  Event: {event}");
    }
}
