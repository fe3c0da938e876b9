//! What the agent is told: environment variables and flags, read once into [`Settings`].
//!
//! The names and defaults are upstream's (contract 3.2); those that start with
//! `LINKERD_CNI_` are our own, and unset they mean what upstream's chart means. A faulty
//! setting ends the agent; nothing that the node may still bring (a directory, a token)
//! is looked at here.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::conflist::mode::ChainMode;
use crate::kube::kubeconfig::SERVICE_ACCOUNT_DIR;
use crate::log;

/// Name of the DaemonSet in upstream's chart and in ours, whatever the release's name.
pub const USUAL_DAEMONSET: &str = "linkerd-cni";

/// Why a setting cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Upstream's words, which people search for.
    #[error("Cannot parse log-level '{value}': {message}")]
    LogLevel { value: String, message: String },
    #[error("{name}={value}: {message}")]
    Value {
        name: &'static str,
        value: String,
        message: String,
    },
}

/// Where the plugin's entry comes from. The variable wins over the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    Text(String),
    File(PathBuf),
    None,
}

/// All that the agent can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the host's root is for the agent, as far as it is mounted.
    pub prefix: PathBuf,
    /// The programs to install, as they are in the image.
    pub image_bin_dir: PathBuf,
    /// The host's directory for CNI programs, as the agent sees it.
    pub bin_dir: PathBuf,
    /// The host's directory for CNI configuration, as the agent sees it.
    pub net_dir: PathBuf,
    /// File name of the kubeconfig in `net_dir`.
    pub kubeconfig_name: String,
    /// The kubeconfig's path as the host sees it: what the plugin's entry names.
    pub kubeconfig_on_host: String,
    pub template: Template,
    /// The CA to put into the kubeconfig, if not the one beside the token.
    pub ca_file: Option<PathBuf>,
    /// Where `token` and `ca.crt` are.
    pub service_account_dir: PathBuf,
    pub api_host: Option<String>,
    pub api_port: Option<String>,
    /// Where `/live`, `/ready` and `/metrics` answer, if anywhere.
    pub admin: Option<SocketAddr>,
    /// How often everything is looked at without a reason.
    pub resync: Duration,
    /// The agent's namespace (`LINKERD_CNI_NAMESPACE`), if told; else it is beside the
    /// token.
    pub namespace: Option<String>,
    /// The agent's own pod (`LINKERD_CNI_POD_NAME`), which Events are about.
    pub pod: Option<String>,
    /// The DaemonSet whose end is the plugin's (`LINKERD_CNI_DAEMONSET`).
    pub daemonset: String,
    /// The pod's termination grace period (`LINKERD_CNI_TERMINATION_GRACE_SECONDS`), after
    /// which kubelet kills the agent.
    pub termination_grace: Duration,
    /// The account whose token the plugin gets (`LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT`);
    /// unset, it gets the agent's own.
    pub plugin_account: Option<String>,
    /// The only configuration to patch (`LINKERD_CNI_CONF_NAME`), also before it exists;
    /// the name of the standalone one where not chained.
    pub conf_name: Option<String>,
    /// Whether the plugin is chained behind the node's network (`LINKERD_CNI_CHAINED`),
    /// or has a configuration of its own that another plugin, such as Multus, calls.
    pub chained: bool,
    /// Whether the chain is a copy of the node's under a name that sorts before it
    /// (`LINKERD_CNI_OWN_CONFIG`), so that the node's own file is never written.
    pub own_config: bool,
    /// Whether to chain only where the bin dir holds a plugin of the network's
    /// (`LINKERD_CNI_REQUIRE_NETWORK_PLUGINS`), as in any other directory the runtime
    /// would not find ours, and could start no pod any more. Upstream always chains.
    pub require_network_plugins: bool,
    /// Whether ready takes a connection that the installed plugin redirected
    /// (`LINKERD_CNI_SELF_TEST`).
    pub self_test: bool,
    /// The taint to take off the node once all is verified
    /// (`LINKERD_CNI_STARTUP_TAINT`), and the node (`LINKERD_CNI_NODE_NAME`).
    pub startup_taint: Option<String>,
    pub node: Option<String>,
    /// Whether the plugin's records are taken in (`LINKERD_CNI_PLUGIN_SOCKET`).
    pub plugin_socket: bool,
    pub log_level: LevelFilter,
    pub log_format: log::Format,
}

impl Settings {
    /// Reads the variables through `lookup`; an empty one counts as unset. The two
    /// flags, where given, win over their variables.
    pub fn read(
        lookup: impl Fn(&str) -> Option<String>,
        log_level: Option<String>,
        log_format: Option<String>,
    ) -> Result<Settings, Error> {
        let var = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let or = |name: &str, default: &str| var(name).unwrap_or_else(|| default.to_owned());
        let prefix = or("CONTAINER_MOUNT_PREFIX", "/host");
        let net_dir = or("DEST_CNI_NET_DIR", "/etc/cni/net.d");
        // Upstream joins it to the directory by the rules of paths, too.
        let kubeconfig_name = or("KUBECONFIG_FILE_NAME", "ZZZ-linkerd-cni-kubeconfig");
        let kubeconfig_name = kubeconfig_name.trim_matches('/').to_owned();
        Ok(Settings {
            prefix: join(&prefix, ""),
            image_bin_dir: PathBuf::from(or("CONTAINER_CNI_BIN_DIR", "/opt/cni/bin")),
            bin_dir: join(&prefix, &or("DEST_CNI_BIN_DIR", "/opt/cni/bin")),
            kubeconfig_on_host: join(&net_dir, &kubeconfig_name).display().to_string(),
            net_dir: join(&prefix, &net_dir),
            kubeconfig_name: plain_name("KUBECONFIG_FILE_NAME", kubeconfig_name)?,
            template: match (var("CNI_NETWORK_CONFIG"), var("CNI_NETWORK_CONFIG_FILE")) {
                (Some(text), _) => Template::Text(text),
                (None, Some(path)) => Template::File(path.into()),
                (None, None) => Template::None,
            },
            ca_file: var("KUBE_CA_FILE").map(PathBuf::from),
            service_account_dir: or("LINKERD_CNI_SERVICE_ACCOUNT_DIR", SERVICE_ACCOUNT_DIR).into(),
            api_host: var("KUBERNETES_SERVICE_HOST").map(host).transpose()?,
            api_port: var("KUBERNETES_SERVICE_PORT").map(port).transpose()?,
            admin: var("LINKERD_CNI_ADMIN_ADDR").map(address).transpose()?,
            resync: seconds(
                "LINKERD_CNI_RESYNC_SECONDS",
                or("LINKERD_CNI_RESYNC_SECONDS", "30"),
            )?,
            namespace: var("LINKERD_CNI_NAMESPACE"),
            pod: var("LINKERD_CNI_POD_NAME"),
            daemonset: or("LINKERD_CNI_DAEMONSET", USUAL_DAEMONSET),
            // Kubernetes' own default, which upstream's chart keeps.
            termination_grace: seconds(
                "LINKERD_CNI_TERMINATION_GRACE_SECONDS",
                or("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "30"),
            )?,
            plugin_account: var("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT"),
            conf_name: var("LINKERD_CNI_CONF_NAME")
                .map(|name| plain_name("LINKERD_CNI_CONF_NAME", name))
                .transpose()?,
            chained: flag("LINKERD_CNI_CHAINED", or("LINKERD_CNI_CHAINED", "true"))?,
            own_config: flag(
                "LINKERD_CNI_OWN_CONFIG",
                or("LINKERD_CNI_OWN_CONFIG", "false"),
            )?,
            require_network_plugins: flag(
                "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS",
                or("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "false"),
            )?,
            self_test: flag(
                "LINKERD_CNI_SELF_TEST",
                or("LINKERD_CNI_SELF_TEST", "false"),
            )?,
            startup_taint: var("LINKERD_CNI_STARTUP_TAINT"),
            node: var("LINKERD_CNI_NODE_NAME"),
            plugin_socket: flag(
                "LINKERD_CNI_PLUGIN_SOCKET",
                or("LINKERD_CNI_PLUGIN_SOCKET", "true"),
            )?,
            log_level: level(log_level.unwrap_or_else(|| or("LINKERD_CNI_LOG_LEVEL", "info")))?,
            log_format: format(
                log_format.unwrap_or_else(|| or("LINKERD_CNI_LOG_FORMAT", "plain")),
            )?,
        })
    }

    /// How the plugin is chained on this node.
    pub fn mode(&self) -> Result<ChainMode, Error> {
        let name = self.conf_name.as_deref();
        ChainMode::choose(name, self.chained, self.own_config, &self.kubeconfig_name).map_err(
            |why| Error::Value {
                name: "LINKERD_CNI_CONF_NAME",
                value: name.unwrap_or_default().to_owned(),
                message: why.into(),
            },
        )
    }

    /// The kubeconfig, as the agent sees it.
    pub fn kubeconfig(&self) -> PathBuf {
        self.net_dir.join(&self.kubeconfig_name)
    }
}

fn level(value: String) -> Result<LevelFilter, Error> {
    log::level(&value).map_err(|message| Error::LogLevel { value, message })
}

fn format(value: String) -> Result<log::Format, Error> {
    value.parse().map_err(|message| Error::Value {
        name: "LINKERD_CNI_LOG_FORMAT",
        value,
        message,
    })
}

fn seconds(name: &'static str, value: String) -> Result<Duration, Error> {
    match value.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::Value {
            name,
            value,
            message: "not a number of seconds from 1 to 86400".into(),
        }),
    }
}

fn flag(name: &'static str, value: String) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::Value {
        name,
        value,
        message: "neither true nor false".into(),
    })
}

fn address(value: String) -> Result<SocketAddr, Error> {
    let text = match value.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => value.clone(),
    };
    text.parse().map_err(|_| Error::Value {
        name: "LINKERD_CNI_ADMIN_ADDR",
        value,
        message: "not an address and a port, such as 0.0.0.0:9990 or [::]:9990".into(),
    })
}

/// What lies in the net dir, where it is watched, and not below it.
fn plain_name(name: &'static str, value: String) -> Result<String, Error> {
    let mut parts = Path::new(&value).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == value.as_str() => Ok(value),
        _ => Err(Error::Value {
            name,
            value,
            message: "not a plain file name: give it without a directory".into(),
        }),
    }
}

/// What can stand in a URL's place for the host. An IPv6 address may be in brackets.
fn host(value: String) -> Result<String, Error> {
    let bare = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let fits = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
        None => value.chars().all(is_name) || value.parse::<Ipv6Addr>().is_ok(),
    };
    match fits {
        true => Ok(value),
        false => Err(Error::Value {
            name: "KUBERNETES_SERVICE_HOST",
            value,
            message: "not an address or the name of a host: give it without scheme, port and \
                      blanks, or leave it to the kubelet"
                .into(),
        }),
    }
}

fn port(value: String) -> Result<String, Error> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u16>() {
        Ok(1..) if digits => Ok(value),
        _ => Err(Error::Value {
            name: "KUBERNETES_SERVICE_PORT",
            value,
            message: "not a port from 1 to 65535: give one, such as 443, or leave it to the \
                      kubelet"
                .into(),
        }),
    }
}

/// `dir/path` by the rules of Go's `path.Join`, which upstream uses: an absolute `path`
/// stays below `dir`, and `.`, `..` and doubled slashes are resolved as text.
fn join(dir: &str, path: &str) -> PathBuf {
    let text = format!("{dir}/{path}");
    let mut clean = PathBuf::new();
    for part in Path::new(&text).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => {
                clean.pop();
            }
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests;
