//! Reads environment variables and flags into [`Settings`], once at the start.
//!
//! Names and defaults are those of upstream's agent. Variables that start with `LINKERD_CNI_` exist
//! only in this project. If they are unset, the agent behaves as under upstream's chart, except
//! that it opens the socket for plugin records. An invalid setting ends the agent. This module
//! checks only values and not files, because a directory or a token may appear on the node later.
//! It reads the disk only to follow absolute links on the way to the CNI directories.

use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::conflist::Entry;
use crate::conflist::chain_mode::ChainMode;
use crate::files;
use crate::kube::kubeconfig::SERVICE_ACCOUNT_DIR;
use crate::log;
use crate::node::NodeSettings;
use crate::pod_copy::RUN_DIR_VARIABLE;

/// An invalid setting: its name, its value and what is wrong with it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Error(String);

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node: NodeSettings,
    /// The plugin entry's template (`CNI_NETWORK_CONFIG`). If unset, it is read from
    /// `entry_template_file`.
    pub entry_template: Option<String>,
    pub entry_template_file: Option<PathBuf>,
    /// CA file for the kubeconfig. If unset, it is `ca.crt` in `service_account_dir`.
    pub ca_file: Option<PathBuf>,
    /// Directory of the agent's `token` and `ca.crt`.
    pub service_account_dir: PathBuf,
    pub api_host: Option<String>,
    pub api_port: Option<String>,
    /// Listen address for `/live`, `/ready` and `/metrics`. If unset, there is no listener.
    pub admin_address: Option<SocketAddr>,
    /// Longest time between two reconcile passes (`LINKERD_CNI_RESYNC_SECONDS`). The chart does not
    /// set the variable. It exists for tests, which shorten the time.
    pub resync: Duration,
    /// The agent's namespace (`LINKERD_CNI_NAMESPACE`). If unset, it is read from
    /// `service_account_dir`.
    pub namespace: Option<String>,
    /// Name of the agent's pod (`LINKERD_CNI_POD_NAME`), recorded in Events. Also names the pod
    /// that the agent watches, if its token is bound to no pod.
    pub pod_name: Option<String>,
    /// Time after SIGTERM at which the kubelet kills the agent
    /// (`LINKERD_CNI_TERMINATION_GRACE_SECONDS`).
    pub termination_grace: Duration,
    /// ServiceAccount whose token the plugin uses (`LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT`). If unset,
    /// the plugin uses the agent's own token.
    pub plugin_account: Option<String>,
    /// Whether to chain the plugin only if the bin dir has a plugin of the primary CNI
    /// (`LINKERD_CNI_REQUIRE_NETWORK_PLUGINS`). If the bin dir has none, the runtime probably uses
    /// another directory. Then it would not find the plugin, and no pod could start. Upstream's
    /// agent always chains its plugin.
    pub require_network_plugins: bool,
    /// Whether the agent is ready only after a self-test (`LINKERD_CNI_SELF_TEST`).
    pub self_test: bool,
    /// Whether to publish the node's pods for the plugin (`LINKERD_CNI_WATCH_PODS`).
    pub watch_pods: bool,
    /// Key of the taint that is removed once the node is ready (`LINKERD_CNI_STARTUP_TAINT`).
    pub startup_taint: Option<String>,
    /// Name of the node (`LINKERD_CNI_NODE_NAME`).
    pub node_name: Option<String>,
    pub log_level: LevelFilter,
    pub log_format: log::Format,
}

/// The environment variables. An empty variable counts as unset.
struct Env<F> {
    lookup: F,
}

impl<F: Fn(&str) -> Option<String>> Env<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn parsed<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Result<Option<T>, Error> {
        match self.text(name) {
            Some(value) => Ok(Some(parse_setting(name, &value, parse)?)),
            None => Ok(None),
        }
    }

    fn flag_or(&self, name: &'static str, default: bool) -> Result<bool, Error> {
        Ok(self.parsed(name, parse_flag)?.unwrap_or(default))
    }

    fn seconds_or(&self, name: &'static str, default: u64) -> Result<Duration, Error> {
        Ok(self.parsed(name, parse_seconds)?.unwrap_or(Duration::from_secs(default)))
    }
}

/// Parses the `value` of the setting `name`. The error names both.
fn parse_setting<T, M: Display>(
    name: &str,
    value: &str,
    parse: impl Fn(&str) -> Result<T, M>,
) -> Result<T, Error> {
    parse(value).map_err(|problem| invalid_setting(name, value, problem))
}

fn invalid_setting(name: &str, value: &str, problem: impl Display) -> Error {
    Error(format!("{name}={value}: {problem}"))
}

impl Settings {
    /// Reads the environment variables through `lookup`. The error names the first invalid one.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, Error> {
        let env = Env { lookup };
        let log_level = env.text_or("LINKERD_CNI_LOG_LEVEL", "info");
        let log_format = env.text_or("LINKERD_CNI_LOG_FORMAT", "plain");
        Ok(Settings {
            node: read_node_settings(&env)?,
            entry_template: env.text("CNI_NETWORK_CONFIG"),
            entry_template_file: env.text("CNI_NETWORK_CONFIG_FILE").map(PathBuf::from),
            ca_file: env.text("KUBE_CA_FILE").map(PathBuf::from),
            service_account_dir: env
                .text_or("LINKERD_CNI_SERVICE_ACCOUNT_DIR", SERVICE_ACCOUNT_DIR)
                .into(),
            api_host: env.parsed("KUBERNETES_SERVICE_HOST", parse_api_host)?,
            api_port: env.parsed("KUBERNETES_SERVICE_PORT", parse_api_port)?,
            admin_address: env.parsed("LINKERD_CNI_ADMIN_ADDR", parse_listen_address)?,
            resync: env.seconds_or("LINKERD_CNI_RESYNC_SECONDS", 30)?,
            namespace: env.text("LINKERD_CNI_NAMESPACE"),
            pod_name: env.text("LINKERD_CNI_POD_NAME"),
            // Under upstream's chart the default of Kubernetes applies, because that chart sets no
            // grace period.
            termination_grace: env.seconds_or("LINKERD_CNI_TERMINATION_GRACE_SECONDS", 30)?,
            plugin_account: env.text("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT"),
            require_network_plugins: env.flag_or("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", false)?,
            self_test: env.flag_or("LINKERD_CNI_SELF_TEST", false)?,
            watch_pods: env.flag_or("LINKERD_CNI_WATCH_PODS", true)?,
            startup_taint: env.text("LINKERD_CNI_STARTUP_TAINT"),
            node_name: env.text("LINKERD_CNI_NODE_NAME"),
            // The message is upstream's, word for word, because users search for it.
            log_level: log::parse_level(&log_level)
                .map_err(|why| Error(format!("Cannot parse log-level '{log_level}': {why}")))?,
            log_format: parse_setting("LINKERD_CNI_LOG_FORMAT", &log_format, str::parse)?,
        })
    }

    /// Renders the plugin entry from the template in the environment or, if there is none, from the
    /// template in the file.
    pub fn plugin_entry(&self) -> Result<Entry, String> {
        if let Some(template) = &self.entry_template {
            return self.render_entry(template, "CNI_NETWORK_CONFIG");
        }
        let Some(path) = &self.entry_template_file else {
            let remedy = "set CNI_NETWORK_CONFIG or CNI_NETWORK_CONFIG_FILE";
            return Err(format!("no plugin entry template: {remedy}"));
        };
        let source = path.display().to_string();
        let template = fs::read_to_string(path)
            .map_err(|error| format!("cannot read the plugin entry template {source}: {error}"))?;
        self.render_entry(&template, &source)
    }

    /// Renders the plugin entry from `template`, which comes from `source`.
    fn render_entry(&self, template: &str, source: &str) -> Result<Entry, String> {
        Entry::new(template, &self.node.kubeconfig_on_host)
            .map_err(|error| format!("the plugin entry template in {source} {error}"))
    }

    /// Returns the host of the API server if it is a name rather than an IP address.
    pub fn api_name(&self) -> Option<&str> {
        let host = self.api_host.as_deref()?;
        let without_brackets = host.trim_start_matches('[').trim_end_matches(']');
        if without_brackets.parse::<IpAddr>().is_ok() {
            return None;
        }
        Some(host)
    }
}

/// Reads where the agent's files are on the node, and how they are installed and uninstalled.
fn read_node_settings<F>(env: &Env<F>) -> Result<NodeSettings, Error>
where
    F: Fn(&str) -> Option<String>,
{
    let mount_prefix = PathBuf::from(env.text_or("CONTAINER_MOUNT_PREFIX", "/host"));
    let net_dir = env.text_or("DEST_CNI_NET_DIR", "/etc/cni/net.d");
    let bin_dir = env.text_or("DEST_CNI_BIN_DIR", "/opt/cni/bin");
    let net_dir_on_node = join("/", &net_dir);
    let bin_dir_on_node = join("/", &bin_dir);
    // Upstream joins this name to the net dir with Go's `path.Join`, which drops extra slashes.
    let kubeconfig_name = env.text_or("KUBECONFIG_FILE_NAME", "ZZZ-linkerd-cni-kubeconfig");
    let kubeconfig_name = kubeconfig_name.trim_matches('/');
    let mode = read_chain_mode(env, kubeconfig_name)?;
    let kubeconfig_name = parse_setting("KUBECONFIG_FILE_NAME", kubeconfig_name, parse_file_name)?;
    Ok(NodeSettings {
        image_bin_dir: env.text_or("CONTAINER_CNI_BIN_DIR", "/opt/cni/bin").into(),
        bin_dir: files::path_in_container(&mount_prefix, &bin_dir_on_node),
        net_dir: files::path_in_container(&mount_prefix, &net_dir_on_node),
        kubeconfig_on_host: join(&net_dir, &kubeconfig_name).display().to_string(),
        kubeconfig_name,
        mount_prefix,
        net_dir_on_node,
        bin_dir_on_node,
        mode,
        keep_binary: env.parsed("LINKERD_CNI_KEEP_BINARY", parse_flag)?,
        run_dir: env.text(RUN_DIR_VARIABLE).map(PathBuf::from),
    })
}

fn read_chain_mode<F>(env: &Env<F>, kubeconfig_name: &str) -> Result<ChainMode, Error>
where
    F: Fn(&str) -> Option<String>,
{
    let conf_name = env.parsed("LINKERD_CNI_CONF_NAME", parse_file_name)?;
    let is_chained = env.flag_or("LINKERD_CNI_CHAINED", true)?;
    ChainMode::choose(conf_name.as_deref(), is_chained, kubeconfig_name).map_err(|problem| {
        let value = conf_name.as_deref().unwrap_or_default();
        invalid_setting("LINKERD_CNI_CONF_NAME", value, problem)
    })
}

fn parse_seconds(value: &str) -> Result<Duration, &'static str> {
    match value.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("not a number of seconds from 1 to 86400"),
    }
}

fn parse_flag(value: &str) -> Result<bool, &'static str> {
    value.parse().map_err(|_| "neither true nor false")
}

/// Parses a listen address. `:9990` means all addresses.
fn parse_listen_address(value: &str) -> Result<SocketAddr, &'static str> {
    let all_addresses = if value.starts_with(':') { "[::]" } else { "" };
    let address = format!("{all_addresses}{value}").parse();
    address.map_err(|_| "not an address and a port, such as 0.0.0.0:9990 or [::]:9990")
}

/// Fails if `value` is not a file name without a directory. The file has to be in the net dir
/// itself, because the agent watches no directory below.
fn parse_file_name(value: &str) -> Result<String, &'static str> {
    let mut parts = Path::new(value).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == value => Ok(value.to_owned()),
        _ => Err("not a file name: remove the directory"),
    }
}

/// Fails if `value` is not valid as the host of a URL. An IPv6 address may be in brackets.
fn parse_api_host(value: &str) -> Result<String, &'static str> {
    let in_brackets = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_host_name(value) || value.parse::<Ipv6Addr>().is_ok(),
    };
    if !is_host {
        return Err(
            "not an IP address or host name: remove scheme, port and blanks, or leave it unset: \
             the kubelet then sets it",
        );
    }
    Ok(value.to_owned())
}

/// Returns whether `value` has only characters of host names and of IPv4 addresses.
fn is_host_name(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
}

/// Fails if `value` is not a port. Accepts no sign before the digits, unlike `u16::from_str`.
fn parse_api_port(value: &str) -> Result<String, &'static str> {
    let has_only_digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u16>() {
        Ok(1..) if has_only_digits => Ok(value.to_owned()),
        _ => Err(
            "not a port from 1 to 65535: correct it, or leave it unset: the kubelet then sets it",
        ),
    }
}

/// Joins `dir` and `path` as Go's `path.Join` does, which upstream uses. An absolute `path`
/// stays below `dir`. `.`, `..` and repeated slashes are resolved without reading the disk.
fn join(dir: &str, path: &str) -> PathBuf {
    let joined = format!("{dir}/{path}");
    let mut clean = PathBuf::new();
    for part in Path::new(&joined).components() {
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
