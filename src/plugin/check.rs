//! CHECK: compares the rules in the pod's netns with those that ADD installs.

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
    /// The rules that are missing or changed, in words. Empty: all rules are there.
    Missing(Vec<String>),
}

/// Fails with [`Failure::RulesMissing`] if a meshed pod lacks rules that ADD installs, and names
/// them. Only this proof fails CHECK: CRI-O calls CHECK for every pod when it restarts, and a
/// failed CHECK costs a running pod its sandbox. An API server that does not answer, a pod object
/// that cannot be read or rules that cannot be listed are recorded, and CHECK succeeds.
pub fn check(request: &Request, config: &Config) -> CallOutcome {
    let record = Record::new(request.command, &request.container_id).checked();
    let pod = match args::parse_pod(&request.args) {
        Ok(Some(pod)) => pod,
        Ok(None) => return outcome(record, Ok(Comparison::Skipped(SkipReason::NoPod))),
        Err(error) => return outcome(record, Err(error)),
    };
    let record = record.of_pod(&pod);
    // If the pod's name decides, no source is read.
    if let Verdict::Skipped(reason) = verdict(config, &pod, PodView::Incomplete) {
        return outcome(record, Ok(Comparison::Skipped(reason)));
    }
    let requested = RequestedPod::read(&pod, request);
    // If the node's copy lacks the pod, the rules in the netns come before an API request: they
    // usually tell what the pod started with. CRI-O calls CHECK also after each ADD.
    if requested.api_budget(config, request.command).is_some() {
        match missing_rules(request, None) {
            Ok(Some(missing)) => return outcome(record, Ok(Comparison::Missing(missing))),
            Ok(None) => {}
            Err(error) => return outcome(record, Err(error)),
        }
    }
    let search = requested.search(config, request.command);
    let record = search.recorded(record);
    outcome(record, compare_with_today(request, config, &pod, search))
}

/// Compares the rules with those that ADD would install today.
pub fn compare_with_today(
    request: &Request,
    config: &Config,
    pod: &PodRef,
    search: PodSearch,
) -> Result<Comparison, Error> {
    let facts = search.facts?;
    let unknown = "it is unknown which rules the pod needs";
    let today = match verdict(config, pod, PodView::from(&facts)) {
        Verdict::Skipped(reason) => return Ok(Comparison::Skipped(reason)),
        // Only ADD refuses a pod. CHECK compares the rules that the running pod still has.
        Verdict::Redirected(resolved) | Verdict::Refused(_, resolved) => resolved,
        Verdict::Failed(error) => return Err(error),
        Verdict::NotCalled | Verdict::Undecided => {
            return Err(Error::new(Failure::Internal, unknown));
        }
    };
    match missing_rules(request, Some(today))? {
        Some(missing) => Ok(Comparison::Missing(missing)),
        None => Err(Error::new(Failure::Internal, unknown)),
    }
}

/// Returns the rules that a meshed pod lacks. `None`: unknown without the rules of `today`.
fn missing_rules(
    request: &Request,
    today: Option<ResolvedRedirect>,
) -> Result<Option<Vec<String>>, Error> {
    let today = today.map(|resolved| firewall::rule_spec(resolved.redirect, resolved.ipv6));
    in_netns(request, move || firewall::missing_rules(today.as_ref()))
}

/// Returns the outcome of a CHECK. Only missing rules fail the call. An error is recorded, and the
/// call succeeds.
fn outcome(record: Record, compared: Result<Comparison, Error>) -> CallOutcome {
    match compared {
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
