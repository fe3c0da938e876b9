//! ADD: installs the redirect rules of a meshed pod.

use serde_json::Value;
use serde_json::value::RawValue;

use super::CallOutcome;
use super::pod_netns::in_netns;
use super::pod_sources::RequestedPod;
use crate::cni::object::Object;
use crate::cni::{Error, Request, args, result};
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::firewall;
use crate::pod::skip::SkipReason;
use crate::record::Record;
use crate::redirect::backend_order::Backend;
use crate::redirect::{Ipv6, Redirect};
use crate::verdict::{PodView, Verdict, verdict};

/// Decides whether to redirect the request's pod, and installs the rules if so. Returns
/// `prevResult` for every pod, meshed or not.
pub fn add(request: &Request, config: &Config) -> CallOutcome {
    let record = Record::new(request.command, &request.container_id);
    let output = match result::pass_through(request) {
        Ok(output) => output,
        Err(error) => return CallOutcome::failed(record, error),
    };
    let pod = match args::parse_pod(&request.args) {
        Ok(Some(pod)) => pod,
        Ok(None) => return CallOutcome::succeeded(record.skipped(SkipReason::NoPod), output),
        Err(error) => return CallOutcome::failed(record, error),
    };
    let record = record.with_pod(&pod);
    // Some pods are skipped by their namespace and name alone. Check this first, because it needs
    // neither the node's copy nor the API server.
    if let Verdict::Skipped(reason) = verdict(config, &pod, PodView::Incomplete) {
        return CallOutcome::succeeded(record.skipped(reason), output);
    }
    let search = RequestedPod::read(&pod, request).search(config, request.command);
    let record = search.add_to(record);
    let facts = match search.facts {
        Ok(facts) => facts,
        Err(error) => return CallOutcome::failed(record, error),
    };
    let resolved = match verdict(config, &pod, PodView::from(&facts)) {
        Verdict::Redirected(resolved) => resolved,
        Verdict::Skipped(reason) => {
            return CallOutcome::succeeded(record.skipped(reason), output);
        }
        Verdict::Refused(refusal, _) => return CallOutcome::failed(record, refusal.error()),
        Verdict::Failed(error) => return CallOutcome::failed(record, error),
        Verdict::NotCalled(_) | Verdict::Undecided(_) => {
            let error = Error::new(Failure::Internal, "the facts about the pod are incomplete");
            return CallOutcome::failed(record, error);
        }
    };
    let ResolvedRedirect { redirect, ipv6, ignored, .. } = resolved;
    // Without the API server, the redirect is a guess from the annotations. The marker of the rules
    // records this, so that an audit compares the rules with the pod object later.
    let redirect = Redirect { is_guessed: search.api_error.is_some(), ..redirect };
    let record = record.with_degraded(search.api_error.as_ref());
    let backend = match install_rules(request, config, redirect, ipv6) {
        Ok(backend) => backend,
        Err(error) => return CallOutcome::failed(record, error),
    };
    let record = Record {
        ipv6_bypasses_proxy: config.ipv6 == Ipv6::Auto
            && ipv6 == Ipv6::No
            && prev_result_has_ipv6(&request.config),
        ..record
    };
    let record = record
        .redirected(backend)
        .with_ignored(ignored)
        .with_containers(resolved.blocked_init_containers, resolved.exempt_containers);
    CallOutcome::succeeded(record, output)
}

/// Installs the rules in the pod's netns. Returns the backend that wrote them.
fn install_rules(
    request: &Request,
    config: &Config,
    redirect: Redirect,
    ipv6: Ipv6,
) -> Result<Backend, Error> {
    let spec = firewall::rule_spec(redirect, ipv6);
    let backends = config.backends;
    in_netns(request, move || firewall::apply(&spec, backends))
}

/// Returns true if `prevResult` contains an IPv6 address, in the format of any CNI version.
pub fn prev_result_has_ipv6(config: &Object) -> bool {
    let previous = config.non_null("prevResult").map_or("null", RawValue::get);
    let previous: Value = serde_json::from_str(previous).unwrap_or_default();
    if previous["ip6"].is_object() {
        return true;
    }
    let Some(ips) = previous["ips"].as_array() else { return false };
    ips.iter().filter_map(|ip| ip["address"].as_str()).any(|address| address.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_address_is_found_in_a_result_of_any_version() {
        let cases = [
            ("{}", false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"}]}}"#, false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"},{"address":"fd00::1/64"}]}}"#, true),
            (r#"{"prevResult":{"ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/64"}}}"#, true),
            (r#"{"prevResult":{"ips":{}}}"#, false),
        ];
        for (config, has_ipv6) in cases {
            let config = serde_json::from_str(config).unwrap();
            assert_eq!(prev_result_has_ipv6(&config), has_ipv6);
        }
    }
}
