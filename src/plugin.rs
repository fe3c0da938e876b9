//! What linkerd-cni does for each CNI command.

pub mod pod;

use std::time::Duration;

use crate::cni::args::{self, PodRef};
use crate::cni::error::{Error, code};
use crate::cni::{Command, Request, result, version};
use crate::config::Config;
use crate::rules::{Family, Redirect};
use crate::{firewall, log, netns};

/// How long programming one pod's namespace may take, all families together.
const NETNS_DEADLINE: Duration = Duration::from_secs(20);

/// Carries out `request` and returns what belongs on stdout.
pub fn run(request: &Request) -> Result<String, Error> {
    match request.command {
        Command::Version => Ok(version::answer()),
        Command::Add => add(request),
        Command::Check => check(request),
        // Our rules go with the pod's namespace: there is nothing to take away.
        Command::Del => refuse_own_netns(request).map(|()| String::new()),
        // Local and at once: runtimes ask it every few seconds and under a lock.
        Command::Gc | Command::Status => Ok(String::new()),
    }
}

/// Redirects a meshed pod's traffic; every pod's result is passed on as it came.
fn add(request: &Request) -> Result<String, Error> {
    refuse_own_netns(request)?;
    let output = result::pass_on(request)?;
    let config = Config::read(&request.config)?;
    start_log(&config);
    let Some(wanted) = redirect(request, &config)? else {
        return Ok(output);
    };
    if config.simulate {
        tracing::warn!(
            "linkerd-cni: simulate is set, the pod gets none of\n{}",
            firewall::simulate(&wanted, families(&config))
        );
        return Ok(output);
    }
    let mode = config.mode;
    let families = families(&config);
    in_netns(request, move || firewall::apply(&wanted, families, mode))?.map_err(firewall_error)?;
    tracing::info!(
        "linkerd-cni: container {} is redirected",
        request.container_id
    );
    Ok(output)
}

/// Compares a meshed pod's rules with what ADD would put there.
fn check(request: &Request) -> Result<String, Error> {
    let config = Config::read(&request.config)?;
    start_log(&config);
    if request.config.given("prevResult").is_none() {
        return Err(Error::new(
            code::INVALID_CONFIG,
            "CHECK: required prevResult missing",
        ));
    }
    let Some(wanted) = redirect(request, &config)? else {
        return Ok(String::new());
    };
    if config.simulate {
        return Ok(String::new());
    }
    let mode = config.mode;
    let families = families(&config);
    let missing = in_netns(request, move || firewall::missing(&wanted, families, mode))?
        .map_err(firewall_error)?;
    if missing.is_empty() {
        return Ok(String::new());
    }
    Err(Error::new(
        code::RULES_MISSING,
        format!("rules of the pod are missing: {}", missing.join("; ")),
    )
    .with_details("delete the pod, so that it starts again with its rules"))
}

/// The redirect that the request's pod should have; `None` if it is none of ours.
fn redirect(request: &Request, config: &Config) -> Result<Option<Redirect>, Error> {
    let Some(PodRef { namespace, name }) = args::pod(&request.args)? else {
        tracing::debug!("linkerd-cni: CNI_ARGS name no pod, nothing to do");
        return Ok(None);
    };
    let pod = PodRef { namespace, name };
    let Some(facts) = pod::ask(&pod, config)? else {
        return Ok(None);
    };
    config
        .redirect(&facts.annotations, &facts.api_ports)
        .map(Some)
}

/// The address families that a pod's rules are for.
pub fn families(config: &Config) -> &'static [Family] {
    if config.ipv6 {
        &[Family::Ipv4, Family::Ipv6]
    } else {
        &[Family::Ipv4]
    }
}

/// A runtime that hands us our own namespace would have its host redirected.
fn refuse_own_netns(request: &Request) -> Result<(), Error> {
    if request.netns_override || !netns::is_own(&request.netns) {
        return Ok(());
    }
    Err(Error::new(
        code::INVALID_NETNS,
        "plugin's netns and netns from CNI_NETNS should not be the same",
    ))
}

fn in_netns<T: Send + 'static>(
    request: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    netns::run(&request.netns, NETNS_DEADLINE, work).map_err(|error| {
        let code = match error {
            netns::Error::Open { .. } | netns::Error::Enter { .. } => code::INVALID_NETNS,
            _ => code::RULES_FAILED,
        };
        Error::new(code, error.to_string())
    })
}

fn firewall_error(error: firewall::Error) -> Error {
    match error {
        firewall::Error::NoPrograms { .. } => Error::new(code::NO_IPTABLES, error.to_string())
            .with_details("install iptables on the node"),
        _ => Error::new(code::RULES_FAILED, error.to_string()).with_details(
            "no rule was left behind; if the kernel lacks this kind of iptables, set the chart's iptablesMode to another",
        ),
    }
}

/// Upstream's levels: `debug` and `info`; anything else is `warn`.
fn start_log(config: &Config) {
    let level = match config.log_level.to_ascii_lowercase().as_str() {
        "debug" | "trace" => tracing::level_filters::LevelFilter::DEBUG,
        "info" => tracing::level_filters::LevelFilter::INFO,
        _ => tracing::level_filters::LevelFilter::WARN,
    };
    log::start(level, log::Format::Plain);
}
