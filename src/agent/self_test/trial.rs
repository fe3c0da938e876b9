//! One trial: the host's plugin, called as the runtime would, for a pod that exists only
//! here, and TCP through what it made.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::call::{self, call, memory};
use super::network::Network;
use super::scratch::{self, Scratch};
use super::server::Server;
use super::target::targets;
use crate::agent::settings::Settings;
use crate::cni::error::code;
use crate::cni::object::Object;
use crate::config::{Config, Ipv6, PodFacts};
use crate::conflist::PLUGIN;
use crate::conflist::{net_dir, plan};
use crate::kube::kubeconfig;
use crate::kube::kubeconfig::Access;
use crate::rules::Redirect;

/// For all of it.
const DEADLINE: Duration = Duration::from_secs(10);
/// A pod of this name is never asked of the real API server.
const POD: &str = "linkerd-cni-self-test";
/// A call needs few threads; the server's only answers.
const STACK: usize = 128 << 10;

/// What a trial came to, in words for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that could be tried was right.
    Passed(String),
    /// It cannot be tried here, which says nothing about the plugin.
    Skipped(String),
    Failed(String),
}

/// Why a trial did not pass.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no network configuration carries {PLUGIN}")]
    Nothing,
    #[error(transparent)]
    Files(#[from] crate::files::Error),
    #[error(transparent)]
    Scratch(#[from] scratch::Error),
    #[error("cannot stand in for the API server: {0}")]
    Server(#[source] io::Error),
    #[error("{command} fails: {source}")]
    Call {
        command: &'static str,
        #[source]
        source: call::Error,
    },
    #[error("{0}")]
    Config(#[from] crate::cni::Error),
    #[error("{0}")]
    Connection(String),
}

impl Error {
    /// Why it says nothing about the plugin, if so.
    fn excuse(&self) -> Option<&'static str> {
        match self {
            Error::Scratch(error) if error.is_forbidden() => {
                Some("the agent needs SYS_ADMIN and NET_ADMIN for it")
            }
            Error::Call {
                source: call::Error::Cni { code, .. },
                ..
            } if *code == u64::from(code::NO_IPTABLES) => {
                Some("the host's programs are out of reach here")
            }
            _ => None,
        }
    }
}

/// What was tried.
#[derive(Default)]
struct Tried {
    connections: Vec<String>,
    checked: bool,
    /// The kernel did what the host's iptables is to do.
    substitute: bool,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ADD")?;
        if self.checked {
            f.write_str(" and CHECK")?;
        }
        f.write_str(" succeed, ")?;
        match self.connections.as_slice() {
            [] => f.write_str("no connection could be tried")?,
            all => write!(f, "TCP is redirected ({})", all.join(", "))?,
        }
        if self.substitute {
            f.write_str("; by nf_tables, as the host's iptables is out of reach")?;
        }
        Ok(())
    }
}

/// Tries what is installed now.
pub fn run(settings: &Settings) -> Outcome {
    let begin = Instant::now();
    match attempt(settings, begin + DEADLINE) {
        Ok(tried) => Outcome::Passed(format!("{tried}, in {} ms", begin.elapsed().as_millis())),
        Err(error) => match error.excuse() {
            Some(excuse) => Outcome::Skipped(format!("{excuse}: {error}")),
            None => Outcome::Failed(error.to_string()),
        },
    }
}

fn attempt(settings: &Settings, end: Instant) -> Result<Tried, Error> {
    let mut network = network(settings)?;
    let mut tried = Tried {
        substitute: network.without_host_programs(),
        ..Tried::default()
    };
    let config: Object = serde_json::from_str(&network.stdin(&Value::Null)).unwrap_or_default();
    // What cannot be read is the plugin's to say.
    let config = Config::read(&config).ok();
    let ipv6 = config
        .as_ref()
        .is_some_and(|config| config.ipv6 != Ipv6::No);
    let scratch = Scratch::make(ipv6)?;
    let server = Server::open().map_err(Error::Server)?;
    let access = Access {
        server: server.url(),
        ca: Vec::new(),
        insecure: false,
        token: None,
    };
    let credential = memory(&kubeconfig::render(&access)).map_err(Error::Server)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), credential.as_raw_fd());
    let network = network.for_pod(&path);
    thread::scope(|scope| {
        let serving = thread::Builder::new()
            .name("self-test api".into())
            .stack_size(STACK)
            .spawn_scoped(scope, || server.run());
        let served = serving.map(|_| ()).map_err(Error::Server);
        let done = served.and_then(|()| {
            let ask = |command, previous: &Value| {
                ask(settings, &scratch, &network, command, previous, end)
            };
            let before = network.result(&scratch.path(), &scratch.pod_addresses());
            let result = ask("ADD", &before)?;
            if let Some(config) = config.filter(|config| !config.simulate) {
                let redirect = config.redirect(&PodFacts::default())?;
                tried.connections = connect(&scratch, &redirect).map_err(Error::Connection)?;
            }
            if network.has_check() {
                ask("CHECK", &result)?;
                tried.checked = true;
            }
            Ok(tried)
        });
        server.close();
        done
    })
}

/// The plugin entry in the network config that the runtime loads; where that has none, as
/// another plugin calls ours, the one in the first network config that has one.
fn network(settings: &Settings) -> Result<Network, Error> {
    let found = net_dir::scan(&settings.net_dir, &settings.kubeconfig_name)?;
    let ours = |file: &net_dir::ConfigFile| {
        let content = file.content.as_ref().ok()?;
        Network::of(&content.text)
    };
    plan::loaded(&found)
        .and_then(ours)
        .or_else(|| found.iter().find_map(ours))
        .ok_or(Error::Nothing)
}

fn ask(
    settings: &Settings,
    scratch: &Scratch,
    network: &Network,
    command: &'static str,
    previous: &Value,
    end: Instant,
) -> Result<Value, Error> {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={POD};K8S_POD_NAME={POD}");
    let vars = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", POD),
        ("CNI_NETNS", &scratch.path()),
        ("CNI_IFNAME", super::INTERFACE),
        ("CNI_PATH", &settings.bin_dir.display().to_string()),
        ("CNI_ARGS", &args),
    ];
    let program = settings.bin_dir.join(PLUGIN);
    call(&program, &vars, &network.stdin(previous), end)
        .map_err(|source| Error::Call { command, source })
}

/// Tries each connection that must end at the proxy, and names them.
fn connect(scratch: &Scratch, redirect: &Redirect) -> Result<Vec<String>, String> {
    let user = (
        nix::unistd::geteuid().as_raw(),
        nix::unistd::getegid().as_raw(),
    );
    let mut listeners: Vec<(u16, TcpListener)> = Vec::new();
    let mut tried = Vec::new();
    for &(pod, neighbour) in scratch.addresses() {
        for target in targets(redirect, user, pod, neighbour) {
            if !listeners.iter().any(|(port, _)| *port == target.proxy) {
                listeners.push((target.proxy, scratch.listen(target.proxy)?));
            }
            for (_, listener) in listeners.iter().filter(|(port, _)| *port == target.proxy) {
                scratch.prove(&target, listener)?;
            }
            let family = if pod.is_ipv6() { "IPv6" } else { "IPv4" };
            tried.push(format!("{family} {}", target.way.name()));
        }
    }
    Ok(tried)
}
