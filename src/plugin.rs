//! Runs the CNI commands ADD, CHECK, DEL, GC, STATUS and VERSION.

mod api;
pub mod pod_sources;

use std::time::{Duration, Instant};

use serde_json::Value;
use serde_json::value::RawValue;
use tracing::level_filters::LevelFilter;

use crate::cni::object::Object;
use crate::cni::{Command, Error, Request, result, version};
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::pod::Decision;
use crate::record::{CallResult, Record};
use crate::redirect::Ipv6;
use crate::{firewall, log, netns, pod_copy};
use pod_sources::{KnownPod, PodRedirect};

/// Timeout for installing or reading the rules in one pod's netns, for all families together.
const NETNS_DEADLINE: Duration = Duration::from_secs(20);

pub fn run(request: &Request) -> Result<String, Error> {
    match request.command {
        Command::Version => Ok(version::response()),
        Command::Add => run_and_record(request, add),
        Command::Check => run_and_record(request, check),
        // The kernel removes the redirect rules together with the pod's netns.
        Command::Del => refuse_own_netns(request).map(|()| String::new()),
        // No I/O here: runtimes send STATUS every few seconds while they hold a lock.
        Command::Gc | Command::Status => Ok(String::new()),
    }
}

fn run_and_record(
    request: &Request,
    work: fn(&Request, &Config, &mut Record) -> Result<String, Error>,
) -> Result<String, Error> {
    let started = Instant::now();
    refuse_own_netns(request)?;
    let config = Config::read_leniently(&request.config);
    // An unknown level means warn, as in upstream.
    let level = log::level(&config.log_level).unwrap_or(LevelFilter::WARN);
    log::start(level, log::Format::Plain);
    if let Some(problem) = &config.problem {
        tracing::warn!(
            "linkerd-cni: ADD and CHECK of meshed pods fail until the plugin entry is corrected: {problem}"
        );
    }
    let mut record = Record::new(request.command, &request.container_id);
    let outcome = work(request, &config, &mut record);
    record.finish(outcome.as_ref().err(), started.elapsed());
    for warning in record.warnings() {
        tracing::warn!("linkerd-cni: pod {}/{}: {warning}", record.namespace, record.pod);
    }
    tracing::info!("{record}");
    if let Some(net_dir) = config.kubeconfig.parent() {
        record.send(&pod_copy::run_dir(), net_dir);
    }
    outcome
}

/// Returns `prevResult` for every pod, meshed or not.
fn add(request: &Request, config: &Config, record: &mut Record) -> Result<String, Error> {
    let output = result::pass_through(request)?;
    let found = match pod_sources::named(request, config, record)? {
        Decision::Redirect(pod) => KnownPod::read(pod, request).find(config, record)?,
        Decision::Skip(reason) => Decision::Skip(reason),
    };
    let PodRedirect { resolved, api_error } = match found {
        Decision::Skip(reason) => {
            record.skip(reason.text());
            return Ok(output);
        }
        Decision::Redirect(found) => found,
    };
    if let Some(error) = config.refusal(&resolved) {
        return Err(error);
    }
    let ResolvedRedirect { redirect, ipv6, ignored, .. } = resolved;
    if let Some(error) = &api_error {
        record.degrade(error);
    }
    let spec = firewall::rule_spec(redirect, ipv6);
    let backends = config.backends;
    let backend = in_netns(request, move || firewall::apply(&spec, backends))?;
    record.result = CallResult::Redirected;
    record.backend = Some(backend);
    record.ignore(ignored);
    record.name_containers(resolved.blocked_init_containers, resolved.exempt_containers);
    record.ipv6_bypasses_proxy =
        (config.ipv6, ipv6) == (Ipv6::Auto, Ipv6::No) && previous_has_ipv6(&request.config);
    Ok(output)
}

/// Fails with [`Failure::RulesMissing`] if a meshed pod lacks rules that ADD installs, and names them. Only
/// this proof fails CHECK: CRI-O calls CHECK for every pod when it restarts, and a failed CHECK costs a
/// running pod its sandbox. An API server that does not answer, a pod object that cannot be read or
/// rules that cannot be listed are recorded, and CHECK succeeds.
fn check(request: &Request, config: &Config, record: &mut Record) -> Result<String, Error> {
    record.result = CallResult::Checked;
    match missing_rules(request, config, record) {
        Ok(missing) if !missing.is_empty() => {
            let missing = firewall::describe_missing(&missing);
            let problem = format!("redirect rules of the pod are missing or changed: {missing}");
            return Err(Error::new(Failure::RulesMissing, problem));
        }
        Ok(_) => {}
        Err(error) => record.degrade(&error),
    }
    Ok(String::new())
}

/// Returns the rules that a meshed pod lacks, or why that is unknown. The rules that are there usually tell what
/// the pod started with, so no API request is sent if the node's copy lacks the pod: CRI-O calls CHECK also
/// after each ADD.
fn missing_rules(
    request: &Request,
    config: &Config,
    record: &mut Record,
) -> Result<Vec<String>, Error> {
    let missing = |today: Option<ResolvedRedirect>| {
        let today = today.map(|found| firewall::rule_spec(found.redirect, found.ipv6));
        in_netns(request, move || firewall::missing_rules(today.as_ref()))
    };
    let pod = match pod_sources::named(request, config, record)? {
        Decision::Redirect(pod) => KnownPod::read(pod, request),
        Decision::Skip(reason) => {
            record.skip(reason.text());
            return Ok(Vec::new());
        }
    };
    if pod.api_budget(config, record.command).is_some()
        && let Some(missing) = missing(None)?
    {
        return Ok(missing);
    }
    match pod.find(config, record)? {
        Decision::Skip(reason) => record.skip(reason.text()),
        Decision::Redirect(found) => {
            return missing(Some(found.resolved))?.ok_or_else(|| {
                Error::new(Failure::Internal, "it is unknown which rules the pod needs")
            });
        }
    }
    Ok(Vec::new())
}

/// Rejects a request for the plugin's own netns, in which the rules would redirect the
/// host's traffic.
fn refuse_own_netns(request: &Request) -> Result<(), Error> {
    if request.netns_override || !netns::is_current(&request.netns) {
        return Ok(());
    }
    Err(Error::new(
        Failure::InvalidNetns,
        "plugin's netns and netns from CNI_NETNS should not be the same",
    )
    .with_details("call the plugin with the pod's netns"))
}

/// Runs `work` inside the pod's netns. Fails with [`Failure::InvalidNetns`] if the netns cannot
/// be opened or entered, and with [`Failure::RulesFailed`] if the rules cannot be installed or read.
fn in_netns<T: Send + 'static>(
    request: &Request,
    work: impl FnOnce() -> Result<T, firewall::Error> + Send + 'static,
) -> Result<T, Error> {
    let result = netns::run(&request.netns, NETNS_DEADLINE, work).map_err(|error| {
        let failure = match error {
            netns::Error::Open { .. } | netns::Error::Enter { .. } => Failure::InvalidNetns,
            _ => Failure::RulesTimedOut,
        };
        Error::new(failure, error.to_string())
    })?;
    result.map_err(firewall_error)
}

fn firewall_error(error: firewall::Error) -> Error {
    let lacks_programs =
        |error: &firewall::Error| matches!(error, firewall::Error::NoPrograms { .. });
    let problem = error.to_string();
    match &error {
        error if lacks_programs(error) => Error::new(Failure::NoIptables, problem),
        firewall::Error::NoBackend { errors } if errors.iter().any(lacks_programs) => {
            let no_backend = Error::new(Failure::NoBackend, problem);
            let Some(remedy) = error.remedy() else { return no_backend };
            no_backend.with_details(format!(
                "nf_tables is not usable: {remedy}; or install iptables on the node"
            ))
        }
        _ => {
            let failed = Failure::RulesFailed.row();
            let remedy = error.remedy().unwrap_or_else(|| failed.remedy.to_owned());
            Error::new(Failure::RulesFailed, problem)
                .with_details(format!("{}; {remedy}", failed.cause))
        }
    }
}

/// Whether `prevResult` has an IPv6 address, in the format of any CNI version.
pub fn previous_has_ipv6(config: &Object) -> bool {
    let previous = config.non_null("prevResult").map_or("null", RawValue::get);
    let previous: Value = serde_json::from_str(previous).unwrap_or_default();
    let addresses = previous["ips"].as_array().into_iter().flatten();
    let is_ipv6 = |address: &Value| address.as_str().is_some_and(|text| text.contains(':'));
    previous["ip6"].is_object() || addresses.into_iter().any(|ip| is_ipv6(&ip["address"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_found_in_a_result_of_any_version() {
        let cases = [
            ("{}", false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"}]}}"#, false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"},{"address":"fd00::1/64"}]}}"#, true),
            (r#"{"prevResult":{"ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/64"}}}"#, true),
            (r#"{"prevResult":{"ips":{}}}"#, false),
        ];
        for (config, wanted) in cases {
            let config = serde_json::from_str(config).unwrap();
            assert_eq!(previous_has_ipv6(&config), wanted);
        }
    }
}
