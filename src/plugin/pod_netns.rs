//! Installs and reads redirect rules in the netns of a request's pod.

use std::time::Duration;

use crate::cni::{Error, Request};
use crate::failure::Failure;
use crate::firewall;
use crate::netns::{self, Netns};

/// Timeout for installing or reading the rules in one pod's netns, for all families together.
const NETNS_DEADLINE: Duration = Duration::from_secs(20);

/// Rejects a request for the plugin's own netns, because rules in that netns would redirect the
/// host's traffic.
pub fn refuse_own_netns(request: &Request) -> Result<(), Error> {
    if request.netns_override || !netns::is_current(&request.netns) {
        return Ok(());
    }
    Err(own_netns_error())
}

fn own_netns_error() -> Error {
    let problem = "plugin's netns and netns from CNI_NETNS should not be the same";
    Error::new(Failure::InvalidNetns, problem).with_details("call the plugin with the pod's netns")
}

/// Runs `work` inside the pod's netns.
///
/// Fails with [`Failure::InvalidNetns`] if the netns cannot be opened or entered, or is the
/// plugin's own, and with [`Failure::RulesTimedOut`] after [`NETNS_DEADLINE`]. Otherwise, an error
/// of `work` determines the failure.
pub fn in_netns<T: Send + 'static>(
    request: &Request,
    work: impl FnOnce() -> Result<T, firewall::Error> + Send + 'static,
) -> Result<T, Error> {
    let netns = Netns::open(&request.netns).map_err(|error| netns_error(&error))?;
    // The path was checked when the call began, but may lead to another netns by now. The open
    // netns cannot change any more, so check it again.
    if !request.netns_override && netns.is_current() {
        return Err(own_netns_error());
    }
    match netns.run(NETNS_DEADLINE, work) {
        Ok(result) => result.map_err(firewall_error),
        Err(error) => Err(netns_error(&error)),
    }
}

fn netns_error(error: &netns::Error) -> Error {
    let failure = match error {
        netns::Error::Open { .. } | netns::Error::Enter { .. } => Failure::InvalidNetns,
        _ => Failure::RulesTimedOut,
    };
    Error::new(failure, error.to_string())
}

/// Converts an error of the firewall to a CNI error with the matching failure and remedy.
fn firewall_error(error: firewall::Error) -> Error {
    let problem = error.to_string();
    if lacks_programs(&error) {
        return Error::new(Failure::NoIptables, problem);
    }
    if let firewall::Error::NoBackend { errors } = &error
        && errors.iter().any(lacks_programs)
    {
        let no_backend = Error::new(Failure::NoBackend, problem);
        return match error.remedy() {
            Some(remedy) => no_backend.with_details(format!(
                "nf_tables is not usable: {remedy}; or install iptables on the node"
            )),
            None => no_backend,
        };
    }
    let failed = Failure::RulesFailed.row();
    let remedy = error.remedy().unwrap_or_else(|| failed.remedy.to_owned());
    Error::new(Failure::RulesFailed, problem).with_details(format!("{}; {remedy}", failed.cause))
}

fn lacks_programs(error: &firewall::Error) -> bool {
    matches!(error, firewall::Error::NoPrograms { .. })
}
