//! Reconciles the host in one pass: observes it, compares each file with what it should be, writes
//! the files that differ, and judges from the outcomes whether the node is ready.
//!
//! The order is plugin binary, kubeconfig, network configs, so that no network config ever names a
//! plugin that cannot run. A kubeconfig of upstream's agent that has a host name is replaced first.

pub mod findings;
mod kubeconfig;
mod network_configs;
mod other_agent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use tracing::info;

use super::api::ApiHandle;
use super::api::events::Event;
use super::contention::{ContendedFile, Contention};
use super::readiness::Status;
use super::record_socket::RecordSocket;
use super::self_test::{SelfTest, TestOutcome, TestedPlugin};
use super::settings::Settings;
use super::status_body::{StatusBody, problems_by_key};
use super::subject::Subject;
use super::upstream_kubeconfig::UpstreamKubeconfig;
use super::watch::Watch;
use super::yielding::{OtherAgent, Yielding};
use crate::conflist::net_dir::{ConfigFile, may_call_plugin};
use crate::conflist::saved_state::SavedState;
use crate::conflist::{Entry, PLUGIN, net_dir};
use crate::files;
use crate::kube::claims::Claims;
use crate::kube::event::{EventContent, EventType};
use crate::node::Mounts;
use crate::node::binaries::Binaries;
use crate::node::lock::NodeLocker;
use findings::Finding::{Problem, Waiting, Warning};
use findings::Pass;
use kubeconfig::{needs_resolver, token_on_host};

/// Reconciles the host. Decides from the files found in each pass; what it remembers between
/// passes only saves work, log lines and writes under contention.
pub struct Reconciler {
    pub settings: Arc<Settings>,
    entry: Entry,
    pub status: Arc<Status>,
    pub api: Arc<ApiHandle>,
    pub mounts: Mounts,
    /// `None`: the settings do not require a self-test for readiness.
    self_test: Option<SelfTest>,
    /// A newer agent of this project replaces the socket's file. This agent then yields.
    pub record_socket: Arc<RecordSocket>,
    pub watch: Watch,
    /// Time to the next pass.
    pub timeout: Duration,
    /// The problems that were logged last, by subject.
    pub logged: BTreeMap<Subject, String>,
    pass: Pass,
    node_lock: NodeLocker,
    binaries: Binaries,
    contention: Contention,
    /// The last token found in the kubeconfig on the host. In use until a new token is issued.
    token_found_on_host: Option<String>,
    /// Names of all network configs to which this agent ever chained the plugin.
    chained: BTreeSet<String>,
    /// Whether the bin dir had the plugin binary when the agent started.
    had_binary: bool,
    /// Whether the runtime is known to look for plugins in the bin dir. Never reset: the
    /// runtime's configuration does not change with a conflist.
    runtime_finds_plugin: bool,
    upstream_kubeconfig: UpstreamKubeconfig,
    yielding: Yielding,
    /// The other agent whose files stay in use, as logged last.
    yields_to: Option<OtherAgent>,
    leftovers_removed: bool,
    /// When the active conflist was read last, if it lacked the plugin entry then.
    lacked_entry_at: Option<Instant>,
    ready_logged: bool,
}

impl Reconciler {
    pub fn new(
        settings: Arc<Settings>,
        entry: Entry,
        status: Arc<Status>,
        api: Arc<ApiHandle>,
        self_test: Option<SelfTest>,
        record_socket: Arc<RecordSocket>,
        watch: Watch,
    ) -> Reconciler {
        let node = &settings.node;
        Reconciler {
            mounts: Mounts::at_start(node),
            node_lock: NodeLocker::new(&node.net_dir),
            had_binary: node.bin_dir.join(PLUGIN).symlink_metadata().is_ok(),
            yielding: Yielding::new(settings.resync),
            settings,
            entry,
            status,
            api,
            self_test,
            record_socket,
            watch,
            timeout: Duration::ZERO,
            logged: BTreeMap::new(),
            pass: Pass::default(),
            binaries: Binaries::default(),
            contention: Contention::default(),
            token_found_on_host: None,
            chained: BTreeSet::new(),
            runtime_finds_plugin: false,
            upstream_kubeconfig: UpstreamKubeconfig::default(),
            yields_to: None,
            leftovers_removed: false,
            lacked_entry_at: None,
            ready_logged: false,
        }
    }

    /// Runs one reconcile pass. Writes nothing to directories that are no longer the node's.
    pub fn pass(&mut self) -> Pass {
        match self.mounts.stale() {
            Some(why) => self.pass.add(Subject::Mounts, Problem(why)),
            None => self.reconcile(),
        }
        self.publish();
        std::mem::take(&mut self.pass)
    }

    fn reconcile(&mut self) {
        let held = self.node_lock.take();
        let node = &self.settings.node;
        let scanned = net_dir::scan(&node.net_dir, &node.kubeconfig_name);
        let saved = SavedState::load(&node.net_dir);
        // Upstream's agent writes its kubeconfig before its plugin entry.
        self.entry.is_exact = self.upstream_kubeconfig.remember(&node.kubeconfig());
        let kept = self.kept_files(scanned.as_deref().unwrap_or_default());
        let is_empty = scanned.as_ref().is_ok_and(|found| self.is_empty(found));
        // The plugin in the image resolves no names. So it replaces an upstream plugin only once
        // the kubeconfig has an address, which both can use.
        let on_host = Binaries::executable(&self.settings.node.bin_dir, PLUGIN).is_some();
        let is_first = on_host && needs_resolver(&self.settings);
        let token = self.plugin_token(is_empty);
        let kubeconfig = is_first.then(|| self.install_kubeconfig(kept, &token));
        let must_resolve = is_first && needs_resolver(&self.settings);
        // An agent that gets no token leaves an empty node as it was.
        let lacks_token = token.text.is_err() || self.status.state().stopped_by.is_some();
        let is_deferred = lacks_token && is_empty && !on_host;
        let skips_binary = must_resolve || is_deferred;
        let binary = if skips_binary { Ok(()) } else { self.install_binaries(kept) };
        let kubeconfig = kubeconfig.unwrap_or_else(|| self.install_kubeconfig(kept, &token));
        // Chains also with a rejected token: otherwise meshed pods start without redirect rules.
        let can_chain = binary.is_ok() && kubeconfig.is_ok() && !is_deferred;
        let chained = match scanned {
            Ok(configs) => self.install_configs(configs, saved, kept, can_chain, held.is_some()),
            Err(error) => Err(error.to_string()),
        };
        drop(held);
        let mut removals = Vec::new();
        for (file, over_at) in self.contention.active(Instant::now()) {
            self.pass.schedule_next(over_at);
            self.pass.body.contended.push(format!("{}: {file}", file.subject));
            match file.is_plugin_entry() {
                true => removals.push(file.to_string()),
                false => self.pass.add(file.subject.clone(), Warning(file.to_string())),
            }
        }
        let removed = (!removals.is_empty()).then(|| Problem(removals.join("; ")));
        self.pass.add(Subject::NetworkConfig, removed);
        // Without a kubeconfig the plugin is not chained, and only that cause is logged.
        let is_waiting = matches!(kubeconfig, Err(Waiting(_)));
        let chained = chained.err().map(if is_waiting { Waiting } else { Problem });
        self.pass.add(Subject::NetworkConfig, chained);
        self.pass.add(Subject::Binary, binary.err().map(Problem));
        self.pass.add(Subject::Kubeconfig, kubeconfig.err());
        self.check_self_test(kept);
        if let Some(end) = self.status.pods_awaited_until() {
            // Until then, a pod whose annotations say nothing of its proxy may start without rules.
            let why = "the pods of this node are not listed yet";
            self.pass.add(Subject::PodCopy, Waiting(why.into()));
            self.pass.schedule_next(end);
        }
        let token = token_on_host(&self.settings);
        let expires = token.and_then(|token| {
            Some(Claims::read(&token)?.expiry()?.duration_since(UNIX_EPOCH).ok()?.as_secs())
        });
        let seconds = i64::try_from(expires.unwrap_or_default()).unwrap_or(i64::MAX);
        self.status.metrics.token_expiration_timestamp_seconds.set(seconds);
        self.pass.body.token_expires = expires;
    }

    /// Returns whether nothing is installed on the node: no kubeconfig, and no plugin entry in
    /// `configs`.
    fn is_empty(&self, configs: &[ConfigFile]) -> bool {
        let calls_plugin = configs.iter().any(|config| may_call_plugin(config.text()));
        !calls_plugin && token_on_host(&self.settings).is_none()
    }

    /// Returns whether an agent may have installed anything on the node. A directory that cannot be
    /// read, or is no longer mounted, may have a plugin entry.
    pub fn is_installed(&self) -> bool {
        if self.mounts.stale_net_dir().is_some() {
            return true;
        }
        let node = &self.settings.node;
        let scanned = net_dir::scan(&node.net_dir, &node.kubeconfig_name);
        !scanned.is_ok_and(|configs| self.is_empty(&configs))
    }

    /// Sets what `/ready`, the metrics and Events show of the pass, and whether the startup taint
    /// may go.
    fn publish(&mut self) {
        let metrics = &self.status.metrics;
        metrics.contention_active.set((!self.pass.body.contended.is_empty()).into());
        metrics.reconcile.inc();
        if self.pass.has_problem() {
            metrics.reconcile_errors.inc();
        }
        if self.status.state().stopped_by.is_some() {
            return;
        }
        let not_ready = self.pass.not_ready();
        if !self.ready_logged && not_ready.is_none() {
            self.ready_logged = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        // Warnings do not keep the startup taint, because some are permanent.
        self.api.pass_finished(not_ready.as_deref());
        let Pass { notes, body, .. } = &self.pass;
        self.status.state().last_pass = StatusBody {
            not_ready,
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            problems: problems_by_key(self.pass.logged()),
            ..body.clone()
        };
    }

    /// Copies the plugin binaries that are missing or different on the host from the image. Those
    /// of another agent that stay in use only need to be executable.
    fn install_binaries(&mut self, kept: Option<OtherAgent>) -> Result<(), String> {
        let node = &self.settings.node;
        let names = Binaries::in_image(node).map_err(|error| {
            let dir = node.image_bin_dir.display();
            format!("CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries")
        })?;
        let mut stale = self.binaries.stale(node, &names).map_err(|error| error.to_string())?;
        if kept.is_some() {
            stale.retain(|name| Binaries::executable(&node.bin_dir, name).is_none());
        }
        if stale.is_empty() {
            return Ok(());
        }
        let settings = Arc::clone(&self.settings);
        let node = &settings.node;
        let file = ContendedFile { subject: Subject::Binary, path: node.bin_dir.clone() };
        self.begin_write(&file, "")?;
        for name in stale {
            files::copy(&node.image_bin_dir.join(&name), &node.bin_dir.join(&name))
                .map_err(|error| error.to_string())?;
            self.pass.wrote = true;
            self.status.metrics.binary_writes.inc();
        }
        // Word for word as in Linkerd's troubleshooting page, because users search for it.
        info!("Wrote linkerd CNI binaries to {}", node.bin_dir.display());
        self.end_write(file, "");
        Ok(())
    }

    /// Makes `/ready` report not ready until the end of the pass. Fails if contention delays a
    /// write with this `key` of [`Contention::blocked_until`].
    fn begin_write(&mut self, file: &ContendedFile, key: &str) -> Result<(), String> {
        let why = format!("{}: being corrected", file.subject);
        self.status.state().last_pass.not_ready = Some(why);
        let Some(until) = self.contention.blocked_until(file, key, Instant::now()) else {
            return Ok(());
        };
        self.pass.schedule_next(until);
        Err(file.to_string())
    }

    /// Records the write that [`Reconciler::begin_write`] allowed. Reports new contention.
    fn end_write(&mut self, file: ContendedFile, key: &str) {
        self.pass.wrote = true;
        if self.contention.record_write(file.clone(), key, Instant::now()) {
            self.status.metrics.contentions.inc();
            self.api.report_event(Event::on_node(EventContent {
                kind: EventType::Warning,
                reason: "LinkerdCNIContention",
                action: "Chaining",
                note: file.to_string(),
            }));
        }
    }

    /// Records the outcome of the self-test, and starts the self-test if there is none yet. It runs
    /// only if binary, kubeconfig and network configs are correct and this pass did not change
    /// them.
    fn check_self_test(&mut self, kept: Option<OtherAgent>) {
        let Some(self_test) = self.self_test.as_mut().filter(|_| self.pass.is_installed()) else {
            return;
        };
        let node = &self.settings.node;
        let dir = match kept {
            None | Some(OtherAgent::Newer) => &node.bin_dir,
            // An upstream plugin cannot run in the self-test: its iptables is on the node.
            Some(OtherAgent::Upstream) => &node.image_bin_dir,
        };
        let Some(binary) = Binaries::executable(dir, PLUGIN) else {
            return;
        };
        let entry = self.pass.yielded_entry.as_ref().unwrap_or(&self.entry).text().to_owned();
        let tested = TestedPlugin { dir: dir.clone(), binary, entry };
        let finding = match self_test.outcome(tested) {
            None => Some(Waiting("still running".into())),
            Some(TestOutcome::Failed(why)) => Some(Problem(why.clone())),
            Some(TestOutcome::Passed(_)) => None,
            Some(TestOutcome::Skipped(why)) => {
                self.pass.notes.push(format!("self-test skipped: {why}"));
                None
            }
        };
        self.pass.add(Subject::SelfTest, finding);
    }
}
