//! Runs one self-test: calls ADD and CHECK of the host's plugin binary for a scratch pod, as a
//! container runtime does, and then opens TCP connections that must be redirected.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, process};

use serde_json::Value;

use super::TestOutcome;
use super::connections::connect;
use super::plugin_call::{self, call};
use super::plugin_config::PluginConfig;
use super::scratch_pod::{self, ScratchPod};
use crate::agent::settings::Settings;
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::PLUGIN;
use crate::conflist::{net_dir, plan};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::files;
use crate::firewall;
use crate::pod::Decision;
use crate::pod::facts::PodFacts;
use crate::pod_copy::{self, RUN_DIR_VARIABLE};
use crate::redirect::{Family, Ipv6};

/// Time after which a plugin call of the self-test is killed, counted from the start of the
/// self-test. Connections have time-outs of their own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name, namespace, UID and container ID of the scratch pod.
const POD: &str = "linkerd-cni-self-test";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no network config has a plugin entry")]
    NoPluginEntry,
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error(transparent)]
    Scratch(#[from] scratch_pod::Error),
    #[error("cannot publish the scratch pod: {0}")]
    Publish(#[from] pod_copy::Error),
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
            Error::Call { source, .. }
                if source.code == Some(Failure::NoIptables.code().into()) =>
            {
                Some("the agent cannot run the host's iptables")
            }
            _ => None,
        }
    }
}

/// Runs the self-test of the plugin binary in `bin_dir` and the plugin entry that is installed now.
pub fn run(settings: &Settings, bin_dir: &Path) -> TestOutcome {
    test(settings, bin_dir).unwrap_or_else(|error| match error.skip_reason() {
        Some(reason) => TestOutcome::Skipped(format!("{reason}: {error}")),
        None => TestOutcome::Failed(error.to_string()),
    })
}

fn test(settings: &Settings, bin_dir: &Path) -> Result<TestOutcome, Error> {
    let (begin, end) = (Instant::now(), Deadline::after(TIMEOUT));
    let mut plugin_config = installed_config(settings)?;
    let config = serde_json::from_str::<Object>(&plugin_config.stdin(&Value::Null));
    // An invalid config is not an error here: ADD fails and describes the mistake.
    let config = Config::read(&config.unwrap_or_default()).ok();
    let ipv6 = config.as_ref().is_some_and(|config| config.ipv6 != Ipv6::No);
    let families = if ipv6 { &[Family::Ipv4, Family::Ipv6][..] } else { &[Family::Ipv4] };
    let mut untested = None;
    if config.as_ref().is_some_and(|config| !firewall::has_programs(config.mode, families)) {
        untested = plugin_config.set_auto_mode().map(|mode| {
            format!(
                "iptablesMode {mode} is not tested: its iptables is on the node, where the agent \
                 cannot run it, so the self-test ran with iptablesMode auto"
            )
        });
    }
    let scratch = ScratchPod::create(ipv6)?;
    let copy = ScratchCopy::publish()?;
    let call_plugin = |command, previous: &Value| {
        call_plugin(bin_dir, &scratch, &copy, &plugin_config, command, previous, end)
    };
    let result = call_plugin("ADD", &plugin_config.previous_result())?;
    let mut redirected = Vec::new();
    if let Some(config) = config.filter(|config| !config.simulate) {
        let redirect = config.redirect(&PodFacts::default())?;
        redirected = connect(&scratch, &redirect).map_err(Error::Connection)?;
    }
    let mut calls = "ADD";
    if plugin_config.has_check() {
        call_plugin("CHECK", &result)?;
        calls = "ADD and CHECK";
    }
    let connections = match redirected.is_empty() {
        true => "no connection could be tested".to_owned(),
        false => format!("TCP is redirected ({})", redirected.join(", ")),
    };
    let ms = begin.elapsed().as_millis();
    let coverage = format!("{calls} succeeded, {connections}, in {ms} ms");
    Ok(TestOutcome::Passed { coverage, untested })
}

/// Returns the plugin's config from the network config with the plugin entry in use.
fn installed_config(settings: &Settings) -> Result<PluginConfig, Error> {
    let found = net_dir::scan(&settings.node.net_dir, &settings.node.kubeconfig_name)?;
    let installed = plan::installed(&found);
    installed.and_then(|file| PluginConfig::of(file.text())).ok_or(Error::NoPluginEntry)
}

/// Calls the plugin binary for the scratch pod, and returns the CNI result. `previous` is the
/// `prevResult`, null for none.
fn call_plugin(
    bin_dir: &Path,
    scratch: &ScratchPod,
    ScratchCopy(run_dir): &ScratchCopy,
    plugin_config: &PluginConfig,
    command: &'static str,
    previous: &Value,
    end: Deadline,
) -> Result<Value, Error> {
    let args =
        format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={POD};K8S_POD_NAME={POD};K8S_POD_UID={POD}");
    let vars = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", POD),
        ("CNI_NETNS", &scratch.path()),
        ("CNI_IFNAME", super::INTERFACE),
        ("CNI_PATH", &bin_dir.display().to_string()),
        ("CNI_ARGS", &args),
        (RUN_DIR_VARIABLE, &run_dir.display().to_string()),
    ];
    let program = bin_dir.join(PLUGIN);
    call(&program, &vars, &plugin_config.stdin(previous), end)
        .map_err(|source| Error::Call { command, source })
}

/// Directory in place of the one that agent and plugin share, with the scratch pod as the only pod in the
/// node's copy. The plugin finds it meshed without an API request, and sends its records to nobody.
struct ScratchCopy(PathBuf);

impl ScratchCopy {
    /// Publishes the scratch pod as a meshed pod.
    fn publish() -> Result<ScratchCopy, pod_copy::Error> {
        let dir = env::temp_dir().join(format!("{POD}.{}", process::id()));
        let failed = |source| files::Error::Io { act: "create", path: dir.clone(), source };
        // Of an agent that was killed.
        let _ = fs::remove_dir_all(&dir);
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let copy = ScratchCopy(dir);
        pod_copy::create(&copy.0)?;
        let [namespace, name, uid] = [POD; 3].map(str::to_owned);
        let pod = PodRef { namespace, name, uid };
        pod_copy::publish(&copy.0, pod, Decision::Redirect(PodFacts::default()))?;
        Ok(copy)
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
