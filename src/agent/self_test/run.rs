//! Runs one self-test: calls ADD and CHECK of the host's plugin binary for a scratch pod, as a
//! container runtime does, and then opens TCP connections that must be redirected.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::connections::connections;
use super::plugin_call::{self, call, memory_file};
use super::plugin_config::PluginConfig;
use super::scratch_pod::{self, ScratchPod};
use super::stub_api::StubApi;
use crate::agent::settings::Settings;
use crate::cni::error::code;
use crate::cni::object::Object;
use crate::config::{Config, Ipv6};
use crate::conflist::PLUGIN;
use crate::conflist::{net_dir, plan};
use crate::deadline::Deadline;
use crate::firewall;
use crate::kube::kubeconfig;
use crate::kube::kubeconfig::ApiAccess;
use crate::pod::facts::PodFacts;
use crate::redirect::{Family, Redirect};

/// Time after which a plugin call of the self-test is killed, counted from the start of the
/// self-test. Connections have time-outs of their own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name, namespace and container ID of the scratch pod. Requests for it go to [`StubApi`], never
/// to the cluster's API server.
const POD: &str = "linkerd-cni-self-test";
/// Stack size of the stub API server's thread, in bytes.
const STACK: usize = 128 << 10;

/// Outcome of a self-test, with a text for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// Each call succeeded and each connection was redirected.
    Passed(String),
    /// The same, with `iptables-mode` `auto` in place of the configured mode. `untested` says why.
    PassedWithAuto {
        coverage: String,
        untested: String,
    },
    /// The self-test cannot run on this node. Says nothing about the plugin.
    Skipped(String),
    Failed(String),
}

/// Why a self-test did not pass.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no network config has a plugin entry")]
    NoPluginEntry,
    #[error(transparent)]
    Files(#[from] crate::files::Error),
    #[error(transparent)]
    Scratch(#[from] scratch_pod::Error),
    #[error("cannot start the stub API server: {0}")]
    Server(#[source] io::Error),
    #[error("{command} failed: {source}")]
    Call {
        command: &'static str,
        #[source]
        source: plugin_call::Error,
    },
    #[error("{0}")]
    Config(#[from] crate::cni::Error),
    #[error("{0}")]
    Connection(String),
}

impl Error {
    /// Returns why the self-test is skipped instead of failed, if this error comes from the
    /// node or from the agent's capabilities and not from the plugin.
    fn skip_reason(&self) -> Option<&'static str> {
        match self {
            Error::Scratch(error) if error.is_forbidden() => {
                Some("the agent lacks SYS_ADMIN or NET_ADMIN")
            }
            Error::Call { source: plugin_call::Error::Cni { code, .. }, .. }
                if *code == u64::from(code::NO_IPTABLES) =>
            {
                Some("the agent cannot run the host's iptables")
            }
            _ => None,
        }
    }
}

/// What a passed self-test covers, for the log.
#[derive(Default)]
struct Coverage {
    /// Address family and direction of each redirected connection.
    connections: Vec<String>,
    /// CHECK was called too.
    checked: bool,
    /// The configured `iptables-mode`, if the self-test ran with `auto` instead.
    untested_mode: Option<String>,
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ADD")?;
        if self.checked {
            f.write_str(" and CHECK")?;
        }
        f.write_str(" succeeded, ")?;
        match self.connections.as_slice() {
            [] => f.write_str("no connection could be tested")?,
            all => write!(f, "TCP is redirected ({})", all.join(", "))?,
        }
        Ok(())
    }
}

/// Runs the self-test of the plugin binary in `bin_dir` and the plugin entry that is installed now.
pub fn run(settings: &Settings, bin_dir: &Path) -> TestOutcome {
    let begin = Instant::now();
    match test(settings, bin_dir, Deadline::after(TIMEOUT)) {
        Ok(coverage) => passed(
            coverage.untested_mode.as_deref(),
            format!("{coverage}, in {} ms", begin.elapsed().as_millis()),
        ),
        Err(error) => match error.skip_reason() {
            Some(reason) => TestOutcome::Skipped(format!("{reason}: {error}")),
            None => TestOutcome::Failed(error.to_string()),
        },
    }
}

fn passed(untested_mode: Option<&str>, coverage: String) -> TestOutcome {
    match untested_mode {
        None => TestOutcome::Passed(coverage),
        Some(mode) => TestOutcome::PassedWithAuto {
            coverage,
            untested: format!(
                "iptablesMode {mode} is not tested: its iptables is on the node, where the agent \
                 cannot run it, so the self-test ran with iptablesMode auto"
            ),
        },
    }
}

/// Calls the plugin and opens the connections. Fails with the first error.
fn test(settings: &Settings, bin_dir: &Path, end: Deadline) -> Result<Coverage, Error> {
    let mut plugin_config = installed_config(settings)?;
    let mut coverage = Coverage::default();
    let stdin = plugin_config.stdin(&Value::Null);
    let config: Object = serde_json::from_str(&stdin).unwrap_or_default();
    // An invalid config is not an error here: ADD fails and describes the mistake.
    let config = Config::read(&config).ok();
    let ipv6 = config.as_ref().is_some_and(|config| config.ipv6 != Ipv6::No);
    let families = if ipv6 { &[Family::Ipv4, Family::Ipv6][..] } else { &[Family::Ipv4] };
    if config.as_ref().is_some_and(|config| !firewall::has_programs(config.mode, families)) {
        coverage.untested_mode = plugin_config.set_auto_mode();
    }
    let scratch = ScratchPod::create(ipv6)?;
    let server = StubApi::open().map_err(Error::Server)?;
    let access = ApiAccess { server: server.url(), ..ApiAccess::default() };
    let credential = memory_file(&kubeconfig::render(&access)).map_err(Error::Server)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), credential.as_raw_fd());
    let plugin_config = plugin_config.for_pod(&path);
    thread::scope(|scope| {
        let serving = thread::Builder::new()
            .name("self-test api".into())
            .stack_size(STACK)
            .spawn_scoped(scope, || server.run());
        let served = serving.map(|_| ()).map_err(Error::Server);
        let tested = served.and_then(|()| {
            let call_plugin = |command, previous: &Value| {
                call_plugin(bin_dir, &scratch, &plugin_config, command, previous, end)
            };
            let previous = plugin_config.previous_result(&scratch.path(), &scratch.pod_addresses());
            let result = call_plugin("ADD", &previous)?;
            if let Some(config) = config.filter(|config| !config.simulate) {
                let redirect = config.redirect(&PodFacts::default())?;
                coverage.connections = connect(&scratch, &redirect).map_err(Error::Connection)?;
            }
            if plugin_config.has_check() {
                call_plugin("CHECK", &result)?;
                coverage.checked = true;
            }
            Ok(coverage)
        });
        server.close();
        tested
    })
}

/// Returns the plugin's config from the active conflist. The active conflist has no plugin entry
/// where a meta plugin such as Multus calls the plugin, so the first network config with a
/// plugin entry is the fallback.
fn installed_config(settings: &Settings) -> Result<PluginConfig, Error> {
    let found = net_dir::scan(&settings.node.net_dir, &settings.node.kubeconfig_name)?;
    let config_of = |file: &net_dir::ConfigFile| {
        let content = file.content.as_ref().ok()?;
        PluginConfig::of(&content.text)
    };
    plan::called(&found)
        .and_then(config_of)
        .or_else(|| found.iter().find_map(config_of))
        .ok_or(Error::NoPluginEntry)
}

/// Calls the plugin binary for the scratch pod, and returns the CNI result. `previous` is the
/// `prevResult`, null for none.
fn call_plugin(
    bin_dir: &Path,
    scratch: &ScratchPod,
    plugin_config: &PluginConfig,
    command: &'static str,
    previous: &Value,
    end: Deadline,
) -> Result<Value, Error> {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={POD};K8S_POD_NAME={POD}");
    let vars = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", POD),
        ("CNI_NETNS", &scratch.path()),
        ("CNI_IFNAME", super::INTERFACE),
        ("CNI_PATH", &bin_dir.display().to_string()),
        ("CNI_ARGS", &args),
    ];
    let program = bin_dir.join(PLUGIN);
    call(&program, &vars, &plugin_config.stdin(previous), end)
        .map_err(|source| Error::Call { command, source })
}

/// Opens each connection that must be redirected, and returns their names for the log. The error
/// describes the first connection that does not reach the proxy's port.
fn connect(scratch: &ScratchPod, redirect: &Redirect) -> Result<Vec<String>, String> {
    let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let mut listeners: Vec<(u16, TcpListener)> = Vec::new();
    let mut redirected = Vec::new();
    for &(pod, neighbour) in scratch.addresses() {
        for connection in connections(redirect, user, pod, neighbour) {
            if !listeners.iter().any(|(port, _)| *port == connection.proxy) {
                listeners.push((connection.proxy, scratch.listen(connection.proxy)?));
            }
            for (_, listener) in listeners.iter().filter(|(port, _)| *port == connection.proxy) {
                scratch.expect_redirect(&connection, listener)?;
            }
            let family = if pod.is_ipv6() { "IPv6" } else { "IPv4" };
            redirected.push(format!("{family} {}", connection.direction.name()));
        }
    }
    Ok(redirected)
}
