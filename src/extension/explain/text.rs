//! Renders the decision for a pod. Pure.

use std::fmt::Write as _;

use super::{PodDecision, PodInputs};
use crate::config::ResolvedRedirect;
use crate::pod::skip::Detection;
use crate::pod::skip::SkipReason;
use crate::redirect::ports::PortRange;
use crate::redirect::rules::{marked_rules, nft_listing, rule_line};
use crate::redirect::{Family, Redirect};

/// The form in which rules are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RuleFormat {
    /// As `nft list ruleset` lists those of the backend native.
    #[default]
    Nft,
    /// As `iptables-save` prints those of the backends nft, legacy and plain.
    Iptables,
}

/// Printed below a decision that the pod's annotations made.
const RUNTIME: &str = "Note:      holds if the container runtime passes the pod's annotations to the \
                       plugin; behind Multus it does not, and the plugin reads the pod instead\n";

/// Renders everything about the pod.
pub fn render(inputs: &PodInputs, format: RuleFormat) -> String {
    let metadata = &inputs.pod.metadata;
    let decision = inputs.decide();
    let node = match inputs.pod.spec.node_name.as_str() {
        "" => "not scheduled",
        node => node,
    };
    let mut text = format!(
        "Pod:       {}/{}\nNode:      {node}\nDecision:  {}\nWhy:       {}\n",
        metadata.namespace,
        metadata.name,
        title(&decision),
        reason(inputs, &decision),
    );
    if depends_on_runtime(inputs, &decision) {
        text.push_str(RUNTIME);
    }
    if let PodDecision::Redirected(resolved) = &decision {
        redirect(&mut text, inputs, resolved, format);
    }
    node_report(&mut text, inputs);
    text
}

fn title(decision: &PodDecision) -> &'static str {
    match decision {
        PodDecision::HostNetwork => "not redirected: the plugin is not called",
        PodDecision::Skipped(_) => "not redirected: the plugin skips the pod",
        PodDecision::Redirected(_) => "redirected to the proxy",
        PodDecision::Failed(_) => "the plugin fails, and the pod cannot start",
    }
}

fn reason(inputs: &PodInputs, decision: &PodDecision) -> String {
    match decision {
        PodDecision::HostNetwork => {
            "spec.hostNetwork is true: the pod uses the node's network namespace".to_owned()
        }
        PodDecision::Skipped(reason) => reason.text().to_owned(),
        PodDecision::Failed(error) => format!("{} (code {})", error.msg, error.failure.code()),
        PodDecision::Redirected(_) if inputs.is_by_annotations() => {
            "the pod has the proxy injector's mark, and with podDetection injector the plugin reads \
             only its annotations"
                .to_owned()
        }
        PodDecision::Redirected(_) => {
            let how = match inputs.config.filter.detection {
                Detection::Api => "the plugin asks the API server for every pod",
                Detection::Annotations | Detection::Injector => "its annotations suggest a proxy",
            };
            format!("the pod has a container linkerd-proxy and no linkerd-init; {how}")
        }
    }
}

/// Whether the plugin decides otherwise if the runtime passes no annotations.
fn depends_on_runtime(inputs: &PodInputs, decision: &PodDecision) -> bool {
    match decision {
        PodDecision::HostNetwork => false,
        PodDecision::Skipped(reason) => {
            matches!(reason, SkipReason::NoProxyAnnotation | SkipReason::InjectionDisabled)
        }
        PodDecision::Redirected(_) | PodDecision::Failed(_) => inputs.is_by_annotations(),
    }
}

fn redirect(
    text: &mut String,
    inputs: &PodInputs,
    resolved: &ResolvedRedirect,
    format: RuleFormat,
) {
    let (has_ipv6, why) = inputs.ipv6(resolved);
    let families: &[Family] =
        if has_ipv6 { &[Family::Ipv4, Family::Ipv6] } else { &[Family::Ipv4] };
    let word = if has_ipv6 { "yes" } else { "no" };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "IPv6:      {word} ({why})");
    for list in &resolved.ignored {
        let _ = writeln!(text, "Warning:   {list}; expected {}", list.grammar());
    }
    if !resolved.exempt_containers.is_empty() {
        let names = resolved.exempt_containers.join(", ");
        let _ = writeln!(
            text,
            "Warning:   containers run as the proxy's user, and their connections bypass it: {names}"
        );
    }
    if inputs.config.simulate {
        let _ = writeln!(
            text,
            "Warning:   simulate is true: the plugin logs the rules and installs none"
        );
    }
    text.push_str("\nConnections (TCP), first match wins:\n");
    connections(text, &resolved.redirect);
    text.push_str("\nRules, as the plugin would install them now:\n\n");
    for &family in families {
        match format {
            RuleFormat::Nft => text.push_str(&nft_listing(&resolved.redirect, family, families)),
            RuleFormat::Iptables => {
                for rule in marked_rules(&resolved.redirect, family, families) {
                    let _ = writeln!(text, "{}", rule_line(&rule));
                }
            }
        }
    }
}

/// Lists which connections reach the proxy, in the order of the rules.
fn connections(text: &mut String, redirect: &Redirect) {
    let mut line = |direction: &str, what: &str, result: &str| {
        let _ = writeln!(text, "  {direction:<9} {what:<44} {result}");
    };
    const DIRECT: &str = "direct";
    let inbound = format!("proxy, port {}", redirect.inbound_port);
    let outbound = format!("proxy, port {}", redirect.outbound_port);
    if !redirect.skip_inbound.is_empty() {
        line("inbound", &ports("to", &redirect.skip_inbound), DIRECT);
    }
    for subnet in &redirect.skip_subnets {
        line("inbound", &format!("from {}", subnet.net), DIRECT);
    }
    match redirect.ports_to_redirect.is_empty() {
        true => line("inbound", "to any other port", &inbound),
        false => {
            let redirected: Vec<PortRange> =
                redirect.ports_to_redirect.iter().map(|&port| port.into()).collect();
            line("inbound", &ports("to", &redirected), &inbound);
            line("inbound", "to any other port", DIRECT);
        }
    }
    if let Some(uid) = redirect.proxy_uid {
        line("outbound", &format!("by user {uid}, the proxy"), DIRECT);
    }
    if let Some(gid) = redirect.proxy_gid {
        line("outbound", &format!("by group {gid}, the proxy"), DIRECT);
    }
    line("outbound", "through the interface lo", DIRECT);
    if !redirect.skip_outbound.is_empty() {
        line("outbound", &ports("to", &redirect.skip_outbound), DIRECT);
    }
    line("outbound", "to any other port", &outbound);
}

fn ports(preposition: &str, ranges: &[PortRange]) -> String {
    let each = ranges.iter().map(|range| match range.first == range.last {
        true => range.first.to_string(),
        false => format!("{}-{}", range.first, range.last),
    });
    let each: Vec<String> = each.collect();
    let noun =
        if ranges.len() == 1 && ranges[0].first == ranges[0].last { "port" } else { "ports" };
    format!("{preposition} {noun} {}", each.join(", "))
}

fn node_report(text: &mut String, inputs: &PodInputs) {
    let report = &inputs.report;
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
        text.push_str("  the agent's log has no plugin call for the pod any more\n");
    }
    for event in &report.events {
        let _ = writeln!(text, "  Event: {event}");
    }
}
