//! The command line of `linkerd cni`, an extension of Linkerd's CLI.
//!
//! `linkerd NAME` runs `linkerd-NAME` from `PATH`. `linkerd check` runs each extension whose
//! command `_extension-metadata` asks for that, with `check --output=json` and the flags of
//! `linkerd check`, and adds the results to its own.

mod cluster;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgAction, Args, Parser, Subcommand};
use humantime::parse_duration;
use serde_json::Value;

use crate::deadline::Deadline;
use crate::extension::kubectl::Kubectl;
use crate::extension::parallel::in_parallel;
use crate::extension::report::{self, Check, CheckResult, Format, Severity};
use crate::extension::requests::{self, Api, ApiUntil};
use crate::extension::{bypass, checks, explain, facts};
use crate::verdict::outcome::Outcome;
use cluster::ClusterFlags;

/// Response to `_extension-metadata`. `linkerd check` compares the name in it with the file name of
/// the extension.
const METADATA: &str = "{\"name\":\"linkerd-cni\",\"checks\":\"always\"}\n";
/// Time between two attempts of the checks, as in `linkerd check`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time for asking all agents, in each attempt of the checks.
const AGENTS_BUDGET: Duration = Duration::from_secs(60);
/// Time for all requests of a report, or of an attempt of the checks. Reading 150,000 pods takes
/// minutes.
const REQUESTS_BUDGET: Duration = Duration::from_secs(600);
/// Upper limit of `--wait`. A longer time is cut to this.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Checks and explains Linkerd's CNI plugin in a cluster, and lists paths around the proxy. Needs
/// kubectl.
#[derive(Parser)]
#[command(name = "linkerd-cni", bin_name = "linkerd cni", version)]
struct Flags {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the chart's objects, the agent of each node, and meshed pods
    Check(CheckFlags),
    /// Show what the plugin decides for a pod, why, and with which rules
    Explain {
        /// Name of the pod
        pod: String,
        /// Namespace of the pod
        #[arg(long, short, default_value = "default")]
        namespace: String,
        /// Format of the report
        #[arg(long, short, value_parser = ["text", "json"], default_value = "text")]
        output: String,
    },
    /// List the paths on which traffic of meshed pods bypasses the proxy
    Bypass {
        /// Namespace of the pods; without it, all namespaces
        #[arg(long, short)]
        namespace: Option<String>,
        /// Format of the report
        #[arg(long, short, value_parser = ["table", "json"], default_value = "table")]
        output: String,
    },
    /// Tells `linkerd check` to run the checks
    #[command(name = "_extension-metadata", hide = true)]
    ExtensionMetadata,
}

#[derive(Args)]
struct CheckFlags {
    /// Contexts of the kubeconfig, with commas: check each of these clusters
    #[arg(long, value_delimiter = ',', conflicts_with = "context")]
    contexts: Vec<String>,
    /// Check whether the chart can be installed
    #[arg(long)]
    pre: bool,
    /// Format of the report
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
    /// Time to wait for a rollout, such as 90s or 5m0s
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    wait: Duration,
    /// Passed by `linkerd check`, without effect here.
    #[arg(long, short, hide = true)]
    namespace: Option<String>,
    /// Passed by `linkerd check`, without effect here.
    #[arg(long, hide = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    proxy: Option<String>,
}

pub fn main() -> ExitCode {
    let flags = Flags::parse();
    match run(&flags) {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            // If stderr is closed, the error cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "linkerd cni: {error:#}");
            ExitCode::from(Outcome::Unknown.exit_code())
        }
    }
}

/// Runs the command, prints its report and returns the outcome. An error says why there is no
/// report.
fn run(flags: &Flags) -> anyhow::Result<Outcome> {
    let cluster = &flags.cluster;
    let api = &Kubectl::new(cluster.kubectl_flags());
    match &flags.command {
        Command::ExtensionMetadata => {
            print(METADATA)?;
            Ok(Outcome::Right)
        }
        Command::Check(check) if !check.contexts.is_empty() => {
            let clusters = check_contexts(cluster, check);
            print(&report::render_contexts(&clusters, check.output, has_color()))?;
            Ok(report::outcome_of_contexts(&clusters))
        }
        Command::Check(check) => {
            let results = check_cluster(api, cluster, check);
            print(&report::render(&results, check.output, has_color()))?;
            Ok(report::outcome(&results))
        }
        Command::Explain { pod, namespace, output } => {
            let api = &connect_with_budget(api)?;
            let cni_namespace = facts::find_namespace(api, &cluster.cni_namespace);
            let explanation = explain::explain(api, &cni_namespace, namespace, pod)?;
            let text = if output == "json" {
                explain::json(&explanation)
            } else {
                explain::text(&explanation)
            };
            print(&text)?;
            Ok(explanation.outcome())
        }
        Command::Bypass { namespace, output } => {
            let api = &connect_with_budget(api)?;
            let cni_namespace = facts::find_namespace(api, &cluster.cni_namespace);
            let report = bypass::fetch(api, &cni_namespace, namespace.as_deref())?;
            let text =
                if output == "json" { bypass::json(&report) } else { bypass::table(&report) };
            print(&text)?;
            Ok(report.outcome())
        }
    }
}

/// Connects to the API server, and bounds the time of all requests of a report together by
/// [`REQUESTS_BUDGET`]. Fails if the API server cannot be reached.
fn connect_with_budget(api: &Kubectl) -> anyhow::Result<ApiUntil<'_>> {
    send_first_request(api).context("cannot query the Kubernetes API")?;
    Ok(ApiUntil { api, end: Deadline::after(REQUESTS_BUDGET) })
}

/// Sends the first request, which shows whether the API server can be reached.
fn send_first_request(api: &Kubectl) -> Result<(), requests::Error> {
    requests::get::<Value>(api, "/version").map(drop)
}

/// Checks the cluster of each context, several at a time. Returns the results in the order of the
/// contexts in `--contexts`.
fn check_contexts(cluster: &ClusterFlags, flags: &CheckFlags) -> Vec<(String, Vec<Check>)> {
    let mut clusters = in_parallel(flags.contexts.clone(), |context| {
        let flag = format!("--context={context}");
        let api = Kubectl::new([cluster.kubectl_flags(), vec![flag]].concat());
        (context, check_cluster(&api, cluster, flags))
    });
    clusters.sort_by_key(|(context, _)| flags.contexts.iter().position(|flag| flag == context));
    clusters
}

/// Runs the checks of one cluster. Repeats them while a failed check may succeed later, at most for
/// the time of `--wait`.
fn check_cluster(api: &Kubectl, cluster: &ClusterFlags, flags: &CheckFlags) -> Vec<Check> {
    if let Err(error) = send_first_request(api) {
        return vec![connection_check(Severity::Unknown.fail(error.to_string()))];
    }
    let end_of_wait = Deadline::after(flags.wait.min(LONGEST_WAIT));
    loop {
        show_progress("running the checks");
        let end_of_attempt = Deadline::after(REQUESTS_BUDGET);
        let results = run_checks(&ApiUntil { api, end: end_of_attempt }, cluster, flags);
        if !report::is_pending(&results) || end_of_wait.has_passed() {
            show_progress("");
            return [vec![connection_check(Ok(()))], results].concat();
        }
        show_progress("waiting for the rollout of the DaemonSet");
        thread::sleep(RETRY_INTERVAL.min(end_of_wait.remaining()));
    }
}

/// Returns the check that the API server can be reached.
fn connection_check(result: CheckResult) -> Check {
    Check::new("linkerd-cni", "kubernetes-api", "can query the Kubernetes API", result)
}

fn run_checks(api: &dyn Api, cluster: &ClusterFlags, flags: &CheckFlags) -> Vec<Check> {
    if flags.pre {
        return checks::check_before_install(api, &cluster.cni_namespace);
    }
    let namespace = facts::find_namespace(api, &cluster.cni_namespace);
    checks::check_installed_chart(
        api,
        &namespace,
        cluster.linkerd_namespace(),
        Deadline::after(AGENTS_BUDGET),
    )
}

/// Shows what runs, on a line of its own that the next call overwrites. Only on a terminal.
fn show_progress(what: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() && !is_dumb_terminal() {
        // The terminal must not wrap a long line, because the next call overwrites only one line.
        let _ = write!(stderr, "\r\x1b[K\x1b[?7l{what}\x1b[?7h");
        let _ = stderr.flush();
    }
}

fn has_color() -> bool {
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !no_color && !is_dumb_terminal()
}

/// Whether the terminal shows no colors and cannot clear a line.
fn is_dumb_terminal() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn print(text: &str) -> anyhow::Result<()> {
    match write_to_stdout(text) {
        // A reader such as `head` closes the pipe once it has seen enough, which is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

fn write_to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn check_accepts_the_flags_of_linkerd_check() {
        Flags::command().debug_assert();
        let passed = "linkerd-cni check --context=kind --as-group=[] --kubeconfig=/k \
                      --verbose=false --linkerd-namespace=linkerd --namespace=web --proxy=false \
                      --wait=5m0s --output=json";
        let flags = Flags::try_parse_from(passed.split_whitespace()).unwrap();
        assert_eq!(flags.cluster.kubectl_flags(), ["--kubeconfig=/k", "--context=kind"]);
        let Command::Check(check) = flags.command else {
            panic!("not check");
        };
        assert_eq!((check.output, check.wait), (Format::Json, Duration::from_secs(300)));
    }
}
