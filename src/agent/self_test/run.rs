//! Runs one self-test: calls ADD and CHECK of the host's plugin binary for a scratch pod, as a
//! container runtime does, and then opens TCP connections that must be redirected.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use serde_json::Value;

use super::connections::test_connections;
use super::plugin_config::PluginConfig;
use super::scratch_pod::{self, ScratchPod};
use super::{INTERFACE, TestOutcome};
use crate::agent::settings::Settings;
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::PLUGIN;
use crate::conflist::{net_dir, plan};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::node::plugin_call::{self, CallError};
use crate::pod::Decision;
use crate::pod::facts::PodFacts;
use crate::pod_copy::{self, RUN_DIR_VARIABLE};
use crate::redirect::Ipv6;

/// Time after the start of the self-test at which a plugin call is killed. Connections have
/// time-outs of their own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The scratch pod's name, which is also its namespace, its UID and its container ID.
const POD: &str = "linkerd-cni-self-test";

/// Turns an error into a failed self-test. Use this only for errors that the plugin or the files of
/// this node cause.
impl<E: std::error::Error> From<E> for TestOutcome {
    fn from(error: E) -> TestOutcome {
        TestOutcome::Failed(error.to_string())
    }
}

/// Runs the self-test of the plugin binary in `bin_dir` and the plugin entry that is installed now.
pub fn run(settings: &Settings, bin_dir: &Path) -> TestOutcome {
    match test(settings, bin_dir) {
        Ok(coverage) => TestOutcome::Passed(coverage),
        Err(outcome) => outcome,
    }
}

/// Returns what was tested, or why the self-test failed or was skipped.
fn test(settings: &Settings, bin_dir: &Path) -> Result<String, TestOutcome> {
    let begin = Instant::now();
    let end = Deadline::after(TIMEOUT);
    let plugin_config = installed_plugin_config(settings)?;
    let config = read_config(&plugin_config);
    let needs_ipv6 = match &config {
        Some(config) => config.ipv6 != Ipv6::No,
        None => false,
    };
    let scratch = ScratchPod::create(needs_ipv6).map_err(judge_uncreated_pod)?;
    let copy = ScratchCopy::publish()
        .map_err(|why| TestOutcome::Failed(format!("cannot publish the scratch pod: {why}")))?;
    let runtime =
        ScratchRuntime { bin_dir, scratch: &scratch, copy: &copy, config: &plugin_config, end };

    let result = runtime.call_plugin("ADD", &plugin_config.previous_result)?;
    let mut redirected = Vec::new();
    if let Some(config) = config {
        let redirect = config.redirect(&PodFacts::default())?;
        redirected = test_connections(&scratch, &redirect).map_err(TestOutcome::Failed)?;
    }
    let mut calls = "ADD";
    if plugin_config.has_check {
        runtime.call_plugin("CHECK", &result)?;
        calls = "ADD and CHECK";
    }

    let connections = if redirected.is_empty() {
        "no connection could be tested".to_owned()
    } else {
        format!("TCP is redirected ({})", redirected.join(", "))
    };
    let ms = begin.elapsed().as_millis();
    Ok(format!("{calls} succeeded, {connections}, in {ms} ms"))
}

/// Reads the config of the plugin from the network config in which it is installed.
fn installed_plugin_config(settings: &Settings) -> Result<PluginConfig, TestOutcome> {
    let node = &settings.node;
    let found = net_dir::scan(&node.net_dir, &node.kubeconfig_name)?;
    if let Some(file) = plan::installed_config(&node.mode, &found)
        && let Some(plugin_config) = PluginConfig::from_network_config(file.text())
    {
        return Ok(plugin_config);
    }
    Err(TestOutcome::Failed("no network config has a plugin entry".into()))
}

/// Reads the config as the plugin reads it. Returns `None` if the config is invalid. That is not
/// reported here, because ADD fails with a better description of the mistake.
fn read_config(plugin_config: &PluginConfig) -> Option<Config> {
    let object = serde_json::from_str::<Object>(&plugin_config.text()).unwrap_or_default();
    Config::read(&object).ok()
}

/// Calls the plugin for the scratch pod, as a container runtime does.
struct ScratchRuntime<'t> {
    bin_dir: &'t Path,
    scratch: &'t ScratchPod,
    copy: &'t ScratchCopy,
    config: &'t PluginConfig,
    /// When a plugin call is killed.
    end: Deadline,
}

impl ScratchRuntime<'_> {
    /// Calls the plugin with the CNI `command`. Returns its result.
    fn call_plugin(&self, command: &str, previous_result: &Value) -> Result<Value, TestOutcome> {
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={POD};K8S_POD_NAME={POD};K8S_POD_UID={POD}");
        let vars = [
            ("CNI_CONTAINERID", POD),
            ("CNI_NETNS", &self.scratch.path()),
            ("CNI_IFNAME", INTERFACE),
            ("CNI_PATH", &self.bin_dir.display().to_string()),
            ("CNI_ARGS", &args),
            (RUN_DIR_VARIABLE, &self.copy.run_dir.display().to_string()),
        ];
        let program = self.bin_dir.join(PLUGIN);
        let stdin = self.config.stdin(previous_result);
        plugin_call::call(&program, command, &vars, &stdin, self.end)
            .map_err(|error| judge_failed_call(command, &error))
    }
}

/// Returns the outcome of a self-test in which a plugin call failed. The self-test counts as
/// skipped if the reason is that the agent, unlike the container runtime, cannot run the host's
/// iptables or may not run the plugin.
fn judge_failed_call(command: &str, error: &CallError) -> TestOutcome {
    let failed = format!("{command} failed: {error}");
    match error {
        CallError::Returned { code, .. } if *code == u64::from(Failure::NoIptables.code()) => {
            TestOutcome::Skipped(format!("the agent cannot run the host's iptables: {failed}"))
        }
        CallError::NotRun { source, .. } if plugin_call::is_denied(source) => {
            TestOutcome::Skipped(format!("the agent may not run the plugin: {failed}"))
        }
        _ => TestOutcome::Failed(failed),
    }
}

/// Returns the outcome of a self-test whose scratch pod could not be created.
fn judge_uncreated_pod(error: scratch_pod::Error) -> TestOutcome {
    if error.is_forbidden() {
        return TestOutcome::Skipped(format!("the agent lacks SYS_ADMIN or NET_ADMIN: {error}"));
    }
    error.into()
}

/// A copy of the node's pods with the scratch pod as its only pod, in a run dir of its own. The
/// plugin finds there that the scratch pod is meshed, and needs no API request. There is no record
/// socket in this run dir, so the records of the self-test are not logged.
struct ScratchCopy {
    run_dir: PathBuf,
}

impl ScratchCopy {
    /// Publishes the scratch pod as a meshed pod.
    fn publish() -> Result<ScratchCopy, pod_copy::Error> {
        let run_dir = env::temp_dir().join(format!("{POD}.{}", process::id()));
        let copy = ScratchCopy { run_dir };
        // An agent that was killed in a self-test may have left a directory with this name.
        let _ = fs::remove_dir_all(&copy.run_dir);
        pod_copy::create(&copy.run_dir)?;
        let pod = PodRef { namespace: POD.into(), name: POD.into(), uid: POD.into() };
        pod_copy::publish(&copy.run_dir, pod, Decision::Redirect(PodFacts::default()))?;
        Ok(copy)
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.run_dir);
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn the_self_test_is_skipped_if_the_agent_may_not_run_the_plugin() {
        for (errno, is_skipped) in
            [(Errno::EACCES, true), (Errno::EPERM, true), (Errno::ENOEXEC, false)]
        {
            let error = CallError::NotRun { path: PLUGIN.into(), source: errno.into() };
            let outcome = judge_failed_call("ADD", &error);
            assert_eq!(matches!(outcome, TestOutcome::Skipped(_)), is_skipped, "{outcome:?}");
        }
    }
}
