//! The command line of `linkerd cni`, an extension of Linkerd's CLI.
//!
//! `linkerd NAME` runs `linkerd-NAME` from `PATH`. `linkerd check` runs each extension whose command
//! `_extension-metadata` asks for that, with `check --output=json` and its own flags, and adds the
//! results to its own.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{ArgAction, Args, Parser, Subcommand};

use crate::deadline::Deadline;
use crate::extension::agents::{AGENT_LIMIT, Agent, Asking, DAEMONSET};
use crate::extension::checks;
use crate::extension::explain::{self, RuleFormat};
use crate::extension::facts;
use crate::extension::install::{self, InstallFlags, REGISTRY_VARIABLE};
use crate::extension::kubectl::Kubectl;
use crate::extension::nodes;
use crate::extension::pre_facts::fetch_pre;
use crate::extension::report::{self, Check, Format};
use crate::extension::uninstall;

/// Default namespace of the control plane.
const LINKERD_NAMESPACE: &str = "linkerd";
/// Response to `_extension-metadata`. `linkerd check` compares the name with the file's.
const METADATA: &str = "{\"name\":\"linkerd-cni\",\"checks\":\"always\"}\n";
/// Time between two attempts of the checks, as in `linkerd check`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time to ask the agents in `check`, if `--wait` is shorter.
const SHORTEST_SWEEP: Duration = Duration::from_secs(60);
/// Time to ask the agents in `nodes`: by default, and with `--all-nodes`.
const NODES_SWEEP: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(3600)];
/// Longest time to wait. A longer `--wait` counts as this.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Checks, shows and explains Linkerd's CNI plugin in a cluster. Needs kubectl.
#[derive(Parser)]
#[command(name = "linkerd-cni", bin_name = "linkerd cni", version)]
struct Flags {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Cluster")]
struct ClusterFlags {
    /// Namespace of the DaemonSet linkerd-cni. If it has none, the only other one is used
    #[arg(long, global = true, default_value = DAEMONSET)]
    cni_namespace: String,
    /// Path of the kubeconfig file
    #[arg(long, global = true)]
    kubeconfig: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true)]
    context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true)]
    user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true)]
    groups: Vec<String>,
    /// Namespace of the control plane
    #[arg(long, short = 'L', global = true, env = "LINKERD_NAMESPACE", hide_env_values = true, default_value = LINKERD_NAMESPACE)]
    linkerd_namespace: String,
    /// Flags that `linkerd check` passes to every extension.
    #[command(flatten)]
    unused: UnusedFlags,
}

/// Accepted without effect.
#[derive(Args)]
struct UnusedFlags {
    #[arg(long, global = true, hide = true)]
    api_addr: Option<String>,
    #[arg(long, global = true, hide = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    verbose: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Check the chart's objects, the agent of each node, and meshed pods
    Check(CheckFlags),
    /// Show the state of each node
    Nodes {
        #[command(flatten)]
        scope: ScopeFlags,
    },
    /// Show what the plugin decides for a pod, why, and with which rules
    Explain {
        /// Name of the pod
        pod: String,
        /// Namespace of the pod
        #[arg(long, short, default_value = "default")]
        namespace: String,
        /// Form of the rules
        #[arg(long, value_enum, default_value_t)]
        rules: RuleFormat,
    },
    /// Print the objects of the chart for `kubectl apply -f -`, with the flags of `linkerd install-cni`. Needs helm
    Install(Box<InstallFlags>),
    /// Print the objects that `install` created in the cluster, for `kubectl delete -f -`
    Uninstall,
    /// Tells `linkerd check` to run the checks
    #[command(name = "_extension-metadata", hide = true)]
    ExtensionMetadata,
}

#[derive(Args)]
struct ScopeFlags {
    /// Ask each agent for its state, also in a cluster with more than 500
    #[arg(long)]
    all_nodes: bool,
}

impl ClusterFlags {
    /// Returns the namespace of the control plane. As in Linkerd's CLI, an empty variable is not set.
    fn linkerd_namespace(&self) -> &str {
        match self.linkerd_namespace.as_str() {
            "" => LINKERD_NAMESPACE,
            namespace => namespace,
        }
    }
}

impl ScopeFlags {
    /// Largest number of agents that are asked.
    fn limit(&self) -> usize {
        if self.all_nodes { usize::MAX } else { AGENT_LIMIT }
    }
}

#[derive(Args)]
struct CheckFlags {
    #[command(flatten)]
    scope: ScopeFlags,
    /// Check whether the chart can be installed
    #[arg(long)]
    pre: bool,
    /// Format of the report
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
    /// Time to wait for a rollout, such as 90s or 5m0s
    #[arg(long, default_value = "5m", value_parser = duration)]
    wait: Duration,
    /// Passed by `linkerd check`, without effect here.
    #[arg(long, short, hide = true)]
    namespace: Option<String>,
    /// Passed by `linkerd check`, without effect here.
    #[arg(long, hide = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    proxy: Option<String>,
}

/// Runs `linkerd cni`.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    match run(&flags) {
        Ok(code) => code,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let api = Kubectl::new(kubectl_flags(&flags.cluster));
    let wanted = &flags.cluster.cni_namespace;
    match &flags.command {
        Command::ExtensionMetadata => print(METADATA)?,
        Command::Install(install) => {
            let registry = env::var(REGISTRY_VARIABLE).ok();
            let printed = install::install(install, registry, wanted)?;
            printed.notes.iter().for_each(|note| say(note));
            print(&printed.stdout)?;
        }
        Command::Uninstall => {
            api.connect().context("cannot query the Kubernetes API")?;
            progress("listing the objects of the chart");
            let manifest = uninstall::uninstall(&api);
            progress("");
            print(&manifest?)?;
        }
        Command::Check(check) => {
            let results = attempt(&api, &flags.cluster, check);
            let text = report::render(&results, check.output, has_color());
            print(&text)?;
            if !report::is_success(&results) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Nodes { scope } => {
            api.connect().context("cannot query the Kubernetes API")?;
            let namespace = facts::find_namespace(&api, wanted);
            let end = Deadline::after(NODES_SWEEP[usize::from(scope.all_nodes)]);
            let asking =
                Asking { known: &[], limit: scope.limit(), end, progress: &agent_progress };
            let linkerd_namespace = flags.cluster.linkerd_namespace();
            let facts = facts::fetch(&api, &namespace, linkerd_namespace, &asking);
            progress("");
            print(&nodes::table(&facts).map_err(|why| anyhow!(why))?)?;
        }
        Command::Explain { pod, namespace, rules } => {
            api.connect().context("cannot query the Kubernetes API")?;
            let cni_namespace = facts::find_namespace(&api, wanted);
            let inputs = explain::fetch(&api, &cni_namespace, namespace, pod);
            print(&explain::render(&inputs.map_err(|why| anyhow!(why))?, *rules))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the checks until none may succeed later, at most for the time to wait.
fn attempt(api: &Kubectl, cluster: &ClusterFlags, flags: &CheckFlags) -> Vec<Check> {
    let wanted = &cluster.cni_namespace;
    let reachable = Check::new("linkerd-cni", "kubernetes-api", "can query the Kubernetes API");
    if let Err(error) = api.connect() {
        return vec![reachable.error(error.to_string())];
    }
    let wait = flags.wait.min(LONGEST_WAIT);
    let end = Deadline::after(wait);
    let sweep_end = Deadline::after(wait.max(SHORTEST_SWEEP));
    let mut known: Vec<Agent> = Vec::new();
    loop {
        progress("running the checks");
        let results = match flags.pre {
            true => checks::before_install(&fetch_pre(api, wanted)),
            false => {
                let namespace = facts::find_namespace(api, wanted);
                let asking = Asking {
                    known: &known,
                    limit: flags.scope.limit(),
                    end: sweep_end,
                    progress: &agent_progress,
                };
                let facts = facts::fetch(api, &namespace, cluster.linkerd_namespace(), &asking);
                let results = checks::installed(&facts);
                known = facts.agents.unwrap_or_default();
                results
            }
        };
        if !report::is_pending(&results) || end.has_passed() {
            progress("");
            return [vec![reachable], results].concat();
        }
        progress("waiting for the rollout of the DaemonSet");
        thread::sleep(RETRY_INTERVAL.min(end.remaining()));
    }
}

/// Writes a message to stderr.
fn say(message: &str) {
    // Nothing is left to report a failure to.
    let _ = writeln!(io::stderr(), "linkerd cni: {message}");
}

fn agent_progress(number: usize, all: usize) {
    progress(&format!("asking agent {number} of {all}"));
}

/// Shows what runs, on a line of its own that the next call overwrites. Only on a terminal.
fn progress(what: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() && !is_dumb() {
        // Without a line break at the margin: only one line is overwritten.
        let _ = write!(stderr, "\r\x1b[K\x1b[?7l{what}\x1b[?7h");
        let _ = stderr.flush();
    }
}

fn has_color() -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb()
}

/// Whether the terminal knows no escape sequences.
fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match printed {
        // The reader, such as `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot write to stdout"),
    }
}

/// Returns kubectl's flags for the same cluster and user.
fn kubectl_flags(flags: &ClusterFlags) -> Vec<String> {
    let one = |name: &str, value: &Option<String>| {
        let value = value.as_ref().filter(|value| !value.is_empty())?;
        Some(format!("--{name}={value}"))
    };
    let mut all: Vec<String> = [
        one("kubeconfig", &flags.kubeconfig),
        one("context", &flags.context),
        one("as", &flags.user),
    ]
    .into_iter()
    .flatten()
    .collect();
    for group in &flags.groups {
        // `linkerd check` passes the list as one value, such as `[a,b]` or `[]`.
        let list = group.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
        let names = list.unwrap_or(group).split(',').filter(|name| !name.is_empty());
        all.extend(names.map(|name| format!("--as-group={name}")));
    }
    all
}

/// Parses a duration as Go prints it, such as `5m0s`, `1.5s` or `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("{text:?} is not a duration; use a number with a unit, such as 90s or 5m");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let length = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(length);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        sum = sum.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    if text.is_empty() { Err(invalid()) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_of_linkerd_check_are_accepted() {
        Flags::command().debug_assert();
        let passed = "linkerd-cni check --context=kind --as-group=[] --kubeconfig=/k --verbose=false \
                      --linkerd-namespace=linkerd --namespace=web --proxy=false --wait=5m0s --output=json";
        let flags = Flags::try_parse_from(passed.split_whitespace()).unwrap();
        assert_eq!(kubectl_flags(&flags.cluster), ["--kubeconfig=/k", "--context=kind"]);
        let Command::Check(check) = flags.command else {
            panic!("not check");
        };
        assert_eq!((check.output, check.wait), (Format::Json, Duration::from_secs(300)));
        assert_eq!(check.scope.limit(), AGENT_LIMIT);
    }

    #[test]
    fn impersonation_is_passed_to_kubectl() {
        let line = "linkerd-cni nodes --as=jane --as-group=[a,b] --as-group c";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        let wanted = ["--as=jane", "--as-group=a", "--as-group=b", "--as-group=c"];
        assert_eq!(kubectl_flags(&flags.cluster), wanted);
    }

    #[test]
    fn durations_are_read_as_go_prints_them() {
        for (text, milliseconds) in [
            ("5m0s", Some(300_000)),
            ("1h0m0s", Some(3_600_000)),
            ("1.5s", Some(1500)),
            ("500ms", Some(500)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("s", None),
            ("1d", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
        ] {
            let wanted = milliseconds.map(Duration::from_millis);
            assert_eq!(duration(text).ok(), wanted, "{text}");
        }
    }
}
