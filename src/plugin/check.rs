//! CHECK: compares the rules in the pod's netns with the rules that ADD installs.

use super::CallOutcome;
use super::pod_netns::in_netns;
use super::pod_sources::{PodSearch, RequestedPod};
use crate::cni::args::PodRef;
use crate::cni::{Error, Request, args};
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::firewall;
use crate::pod::skip::SkipReason;
use crate::record::Record;
use crate::verdict::{PodView, Verdict, verdict};

/// What a CHECK found.
#[derive(Debug)]
pub enum Comparison {
    /// The plugin installs no rules in this pod.
    Skipped(SkipReason),
    /// The rules that are missing or changed, as lines of `iptables-save`. Empty: no rule is
    /// missing or changed.
    Missing(Vec<String>),
}

/// Fails with [`Failure::RulesMissing`] if rules of a meshed pod are known to be missing, and names
/// them.
///
/// Nothing else fails CHECK: CRI-O calls CHECK for every pod when CRI-O restarts, and a running pod
/// loses its sandbox if CHECK fails. If the API server does not respond, or if the pod object or
/// the rules cannot be read, CHECK records the problem and succeeds.
pub fn check(request: &Request, config: &Config) -> CallOutcome {
    let record = Record::new(request.command, &request.container_id).checked();
    let pod = match args::parse_pod(&request.args) {
        Ok(Some(pod)) => pod,
        Ok(None) => return outcome(record, Ok(Comparison::Skipped(SkipReason::NoPod))),
        Err(error) => return outcome(record, Err(error)),
    };
    let record = record.with_pod(&pod);
    // Some pods are skipped by their namespace and name alone. Check this first, because it needs
    // neither the node's copy nor the API server.
    if let Verdict::Skipped(reason) = verdict(config, &pod, PodView::Incomplete) {
        return outcome(record, Ok(Comparison::Skipped(reason)));
    }
    let requested = RequestedPod::read(&pod, request);
    // If the facts would need an API request, first compare the rules in the netns with their own
    // marker. The marker usually tells which rules the pod started with, so that no request is
    // needed. This saves many requests, because CRI-O also calls CHECK after each ADD.
    if requested.api_budget(config, request.command).is_some() {
        match in_netns(request, || firewall::missing_rules(None)) {
            Ok(Some(missing)) => return outcome(record, Ok(Comparison::Missing(missing))),
            Ok(None) => {}
            Err(error) => return outcome(record, Err(error)),
        }
    }
    let search = requested.search(config, request.command);
    let record = search.add_to(record);
    outcome(record, compare_with_new_rules(request, config, &pod, search))
}

/// Compares the rules in the netns with those that ADD would install now.
pub fn compare_with_new_rules(
    request: &Request,
    config: &Config,
    pod: &PodRef,
    search: PodSearch,
) -> Result<Comparison, Error> {
    let facts = search.facts?;
    let unknown = "it is unknown which rules the pod needs";
    let resolved = match verdict(config, pod, PodView::from(&facts)) {
        Verdict::Skipped(reason) => return Ok(Comparison::Skipped(reason)),
        // Only ADD refuses a pod. A pod that is running is checked like any other, even if ADD
        // would refuse it now.
        Verdict::Redirected(resolved) | Verdict::Refused(_, resolved) => resolved,
        Verdict::Failed(error) => return Err(error),
        Verdict::NotCalled(_) | Verdict::Undecided(_) => {
            return Err(Error::new(Failure::Internal, unknown));
        }
    };
    let ResolvedRedirect { redirect, ipv6, .. } = resolved;
    let spec = firewall::rule_spec(redirect, ipv6);
    match in_netns(request, move || firewall::missing_rules(Some(&spec)))? {
        Some(missing) => Ok(Comparison::Missing(missing)),
        None => Err(Error::new(Failure::Internal, unknown)),
    }
}

/// Returns the outcome of a CHECK. Only missing rules fail the call. An error is recorded, and the
/// call succeeds.
fn outcome(record: Record, comparison: Result<Comparison, Error>) -> CallOutcome {
    match comparison {
        Ok(Comparison::Skipped(reason)) => {
            CallOutcome::succeeded(record.skipped(reason), String::new())
        }
        Ok(Comparison::Missing(missing)) if missing.is_empty() => {
            CallOutcome::succeeded(record, String::new())
        }
        Ok(Comparison::Missing(missing)) => {
            let missing = firewall::describe_missing(&missing);
            let problem = format!("redirect rules of the pod are missing or changed: {missing}");
            CallOutcome::failed(record, Error::new(Failure::RulesMissing, problem))
        }
        Err(error) => CallOutcome::succeeded(record.with_degraded(Some(&error)), String::new()),
    }
}
