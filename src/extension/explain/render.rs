//! Renders the explanation of one pod as text and as JSON.

use serde_json::{Value, json};

use super::Explanation;
use crate::cni::Error as CniError;
use crate::config::{Config, ResolvedRedirect};
use crate::extension::bypass::path_json;
use crate::extension::rules_now::PodRules;
use crate::quote::one_line;
use crate::redirect::interfaces::Interface;
use crate::redirect::rules::{marked_rules, rule_line};
use crate::redirect::{Family, Ipv6, Redirect};
use crate::verdict::Verdict;
use crate::verdict::bypass_paths::BypassPath;
use crate::verdict::outcome::Outcome;

/// Printed for a pod that has a proxy container and no annotation of a proxy.
const UNANNOTATED: &str = "Note:      the pod has no annotation of a proxy: the plugin skips it \
                           while no agent runs on its node\n";

/// What the plugin decides, and why.
struct Decision {
    /// One word, for programs.
    label: &'static str,
    title: &'static str,
    reason: String,
    remedy: Option<String>,
}

/// Renders the explanation for people. If the plugin redirects the pod, the rules follow.
pub fn text(explanation: &Explanation) -> String {
    let Explanation { config, namespace, name, examined, .. } = explanation;
    let node = match explanation.node.as_str() {
        "" => "not scheduled",
        node => node,
    };
    let Decision { title, reason, remedy, .. } = describe_verdict(&examined.verdict);
    let mut text = format!("Pod:       {namespace}/{name}\nNode:      {node}\n");
    text.push_str(&format!("Outcome:   {}\n", explanation.outcome().label()));
    text.push_str(&format!("Decision:  {title}\nWhy:       {}\n", one_line(&reason)));
    if let Some(remedy) = remedy {
        text.push_str(&format!("Remedy:    {remedy}\n"));
    }
    if let Some(reason) = &explanation.unknown_call {
        text.push_str(&format!("Unknown:   {}\n", one_line(reason)));
    }
    text.push_str(&describe_rules_now(&explanation.rules));
    if let Verdict::Redirected(resolved) = &examined.verdict {
        if !explanation.is_annotated {
            text.push_str(UNANNOTATED);
        }
        text.push_str(&describe_redirect(config, resolved, &examined.paths));
    }
    text
}

/// Returns a line on the rules that the pod has now. Empty if nothing is reported of them.
fn describe_rules_now(rules: &PodRules) -> String {
    match rules {
        PodRules::NotReported => String::new(),
        PodRules::Missing(reason) => format!("Rules now: missing: {}\n", one_line(reason)),
        PodRules::Unknown(reason) => format!("Rules now: unknown: {}\n", one_line(reason)),
    }
}

/// Renders the explanation for programs.
pub fn json(explanation: &Explanation) -> String {
    let Decision { label, reason, remedy, .. } = describe_verdict(&explanation.examined.verdict);
    let (rules, rules_why) = match &explanation.rules {
        PodRules::NotReported => (Outcome::Right, None),
        PodRules::Missing(reason) => (Outcome::Wrong, Some(reason)),
        PodRules::Unknown(reason) => (Outcome::Unknown, Some(reason)),
    };
    let paths: Vec<Value> = explanation.examined.paths.iter().map(path_json).collect();
    let all = json!({
        "namespace": explanation.namespace,
        "name": explanation.name,
        "node": explanation.node,
        "outcome": explanation.outcome().label(),
        "decision": label,
        "why": reason,
        "remedy": remedy,
        "unknownCall": explanation.unknown_call,
        "rulesNow": {"outcome": rules.label(), "why": rules_why},
        "bypasses": paths,
    });
    format!("{all:#}\n")
}

fn describe_verdict(verdict: &Verdict) -> Decision {
    let (label, title, reason) = match verdict {
        Verdict::NotCalled(reason) => {
            ("not-called", "not redirected: the plugin is not called", reason.text().to_owned())
        }
        Verdict::Skipped(reason) => {
            ("skipped", "not redirected: the plugin skips the pod", reason.text().to_owned())
        }
        Verdict::Redirected(_) => (
            "redirected",
            "redirected to the proxy",
            "the pod has a container linkerd-proxy and no linkerd-init".to_owned(),
        ),
        Verdict::Refused(refusal, _) => return describe_failure(&refusal.error()),
        Verdict::Failed(error) => return describe_failure(error),
        Verdict::Undecided(reason) => ("unknown", "unknown", reason.clone()),
    };
    Decision { label, title, reason, remedy: None }
}

fn describe_failure(error: &CniError) -> Decision {
    Decision {
        label: "fails",
        title: "the plugin fails, and the pod cannot start",
        reason: format!("{} (code {})", error.msg, error.failure.code()),
        remedy: Some(error.details.to_string()),
    }
}

/// Returns the redirected IP families, and why IPv6 is redirected or not.
fn describe_families(configured: Ipv6, resolved: Ipv6) -> (&'static [Family], &'static str) {
    match resolved {
        Ipv6::Yes => (Family::ALL, "yes (disableIPv6=false)"),
        Ipv6::Auto => (Family::ALL, "yes (ipv6: auto, if the node's kernel has IPv6)"),
        Ipv6::No if configured == Ipv6::Auto => {
            (Family::IPV4, "no (ipv6: auto, and the proxy listens on IPv4 only)")
        }
        Ipv6::No => (Family::IPV4, "no (disableIPv6=true)"),
    }
}

/// Describes the redirect: ports, families, ignored elements, paths around the proxy, and rules.
fn describe_redirect(config: &Config, resolved: &ResolvedRedirect, paths: &[BypassPath]) -> String {
    let (families, ipv6) = describe_families(config.ipv6, resolved.ipv6);
    let Redirect { inbound_port, outbound_port, .. } = resolved.redirect;
    let mut text = format!("Ports:     inbound {inbound_port}, outbound {outbound_port}\n");
    text.push_str(&format!("IPv6:      {ipv6}\n"));
    let inner_interfaces = &resolved.redirect.inner_interfaces;
    if !inner_interfaces.is_empty() {
        let names: Vec<&str> = inner_interfaces.iter().map(Interface::name).collect();
        let names = names.join(", ");
        text.push_str(&format!("Inner:     outbound, although they arrive, through {names}\n"));
    }
    for list in &resolved.ignored {
        text.push_str(&format!("Warning:   {list}; expected {}\n", list.grammar()));
    }
    for path in paths {
        text.push_str(&describe_path(path));
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

fn describe_path(path: &BypassPath) -> String {
    let BypassPath { reason, detail, cause } = path;
    let cause = match cause {
        Some((kind, key)) => format!(" ({kind}: {key})"),
        None => String::new(),
    };
    let is_unknown = reason.outcome() == Outcome::Unknown;
    let unknown = if is_unknown { " (unknown)" } else { "" };
    format!("Bypass:    {}{unknown} {detail}{cause}\n", reason.label())
}
