//! Decides when to yield to another agent on this node: to keep its plugin entry until it ends.
//!
//! Two agents run side by side while a rolling update surges. If both insisted on their own plugin
//! entry, neither would become ready and the rollout would never end. So this agent yields
//! - to a newer agent of this project, for as long as that agent runs. The record socket shows
//!   both. That agent's plugin binary and kubeconfig stay in use, too.
//! - to an upstream agent, which restores its plugin entry within milliseconds, whoever overwrites
//!   it. An upstream agent never notices a replaced plugin binary or kubeconfig, so this agent
//!   installs its own, unless the API server has a host name, which only upstream's plugin
//!   resolves.
//!
//! An upstream agent that died leaves the same plugin entry as one that runs. Only overwriting the
//! entry tells them apart, so from time to time this agent writes its own entry.
//!
//! This agent does not yield to another program that removes the plugin entry: that is contention.

use std::time::{Duration, Instant};

use crate::backoff::between;
use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::Entry;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;

/// Time within which an upstream agent restores its plugin entry, also on a busy node.
pub const RESTORED_WITHIN: Duration = Duration::from_secs(2);

/// The agent whose files stay in use: its entry, or in a pass also its binary and kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherAgent {
    /// An agent of this project that started after this one.
    Newer,
    /// An upstream agent that restores its plugin entry.
    Upstream,
}

impl OtherAgent {
    pub fn describe(self) -> &'static str {
        match self {
            OtherAgent::Newer => {
                "a newer agent runs on this node: its plugin binary, kubeconfig and plugin entry \
                 are in use until it ends"
            }
            OtherAgent::Upstream => {
                "an upstream agent runs on this node: its plugin entry is in use until it ends"
            }
        }
    }
}

/// What this agent remembers of an upstream agent on the node.
#[derive(Debug)]
pub struct Yielding {
    /// Longest time to yield to an upstream agent before this agent writes its own entry again.
    period: Duration,
    /// This agent's entry was found, or its write was requested, in the last pass that found an
    /// entry. If an upstream entry follows, an upstream agent runs.
    was_chained: bool,
    /// When this agent last wrote its entry over an upstream one.
    tried: Option<Instant>,
    /// When this agent stops yielding and tries to write its own plugin entry.
    pub until: Option<Instant>,
}

impl Yielding {
    pub fn new(period: Duration) -> Yielding {
        Yielding { period, was_chained: false, tried: None, until: None }
    }

    /// Returns the plugin entry to yield to, among the network configs `found`. `None`: the
    /// agent's `own` entry belongs in the network configs, and the caller writes it.
    /// `kubeconfig` is the path on the host of the kubeconfig that this agent keeps correct, `mode`
    /// this agent's chain mode.
    pub fn choose(
        &mut self,
        own: &Entry,
        kubeconfig: &str,
        mode: &ChainMode,
        found: &[ConfigFile],
        newer_agent_runs: bool,
        now: Instant,
    ) -> Option<(OtherAgent, Entry)> {
        let installed = if mode.only_config().is_some() && !newer_agent_runs {
            // Only the file of this mode counts: an upstream agent that ended may have left its
            // entry in other files.
            plan::chained_config(mode, found)
        } else {
            plan::installed_config(&ChainMode::Every, found)
        };
        let Some(entry) = installed.and_then(|file| entry_of(file, kubeconfig)) else {
            // Without an entry no upstream agent runs: it would restore its entry at once.
            self.tried = None;
            return None;
        };
        if own.matches(entry.text()) {
            self.was_chained = true;
            self.until = None;
            return None;
        }
        if !is_usable(&entry, kubeconfig) {
            return None;
        }
        if newer_agent_runs {
            self.was_chained = false;
            return Some((OtherAgent::Newer, entry));
        }
        // An older agent of this project yields to this one.
        if !own.is_foreign(entry.text()) {
            return None;
        }
        if std::mem::take(&mut self.was_chained) {
            self.until = Some(now + between(self.period * 2 / 3, self.period));
        }
        if self.until.is_some_and(|until| now < until) {
            return Some((OtherAgent::Upstream, entry));
        }
        self.until = None;
        self.was_chained = true;
        self.tried = Some(now);
        None
    }

    /// Whether an upstream agent may still restore the entry that this agent replaced.
    pub fn is_trying(&self, now: Instant) -> bool {
        self.tried.is_some_and(|tried| now < tried + RESTORED_WITHIN)
    }
}

/// Returns whether a usable plugin entry is installed, so that this agent may leave all writes to a
/// newer agent that runs. If both agents wrote, each would remove the other's entries, as this
/// agent does not know the newer agent's chain mode.
///
/// An entry that the runtime does not call in this agent's `mode` counts only
/// - if the newer agent chains no other file, as the `saved` state says, or
/// - if the runtime calls no network config at all.
///
/// In all other cases the newer agent may be unable to chain the plugin.
pub fn usable_entry_is_installed(
    own: &Entry,
    kubeconfig: &str,
    mode: &ChainMode,
    found: &[ConfigFile],
    saved: &SavedState,
) -> bool {
    if let Some(only) = saved.only_config.clone()
        && let Some(file) = plan::chained_config(&ChainMode::Only(only), found)
    {
        return has_usable_entry(file, own, kubeconfig);
    }
    let called = plan::called_config(found);
    let is_other_called = called.is_some_and(|called| called.plugin_entry().is_none())
        && plan::chained_config(mode, found).is_none();
    if is_other_called {
        return false;
    }
    let installed = plan::installed_config(&ChainMode::Every, found);
    installed.is_some_and(|file| has_usable_entry(file, own, kubeconfig))
}

/// Returns whether `file` has this agent's `own` plugin entry, or another with which the plugin
/// works.
fn has_usable_entry(file: &ConfigFile, own: &Entry, kubeconfig: &str) -> bool {
    match entry_of(file, kubeconfig) {
        Some(entry) => own.matches(entry.text()) || is_usable(&entry, kubeconfig),
        None => false,
    }
}

/// Returns the plugin entry in `file`, if it is valid.
fn entry_of(file: &ConfigFile, kubeconfig: &str) -> Option<Entry> {
    Entry::new(file.plugin_entry()?.text, kubeconfig).ok()
}

/// Returns whether an upstream agent may have written a plugin entry in one of the network configs
/// that `mode` chains. The entry is younger than one pass, or this agent yields to it, so an
/// upstream agent probably runs: such an agent has its entry in all network configs.
pub fn is_chained_by_upstream(mode: &ChainMode, found: &[ConfigFile], own: &Entry) -> bool {
    let mut entries = plan::selected_configs(mode, found).filter_map(ConfigFile::plugin_entry);
    entries.any(|entry| own.is_foreign(entry.text))
}

/// Returns whether the plugin works with the `entry`: the settings are valid, and the kubeconfig is
/// the one that this agent keeps correct. Another kubeconfig may have a dead token.
fn is_usable(entry: &Entry, kubeconfig: &str) -> bool {
    let config: Result<Object, _> = serde_json::from_str(entry.text());
    entry.value["kubernetes"]["kubeconfig"] == kubeconfig
        && config.is_ok_and(|config| Config::read(&config).is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::conflist::net_dir::{ConfigKind, Content};
    use crate::files::FileAccess;

    const KUBECONFIG: &str = "/etc/cni/net.d/kubeconfig";

    fn entry(port: u16, namespace: Option<&str>) -> Value {
        json!({
            "type": "linkerd-cni",
            "kubernetes": {"kubeconfig": KUBECONFIG},
            "linkerd": {"incoming-proxy-port": port, "agent-namespace": namespace},
        })
    }

    /// One conflist with these plugin entries.
    fn found(entries: &[&Value]) -> Vec<ConfigFile> {
        let mut plugins = vec![json!({"type": "bridge"})];
        plugins.extend(entries.iter().map(|entry| (*entry).clone()));
        let text = json!({"name": "n", "plugins": plugins}).to_string();
        let content = Content { text, access: FileAccess::own(0o600), link: None };
        let name = "10-net.conflist".to_owned();
        vec![ConfigFile { name, kind: ConfigKind::Conflist, content: Ok(content) }]
    }

    #[test]
    fn a_newer_agents_entry_is_kept_if_it_is_usable_and_called() {
        let own = Entry::new(&entry(1, Some("ns")).to_string(), "").unwrap();
        let mut saved = SavedState::default();
        let is_usable = |mode: &ChainMode, found: &[_], saved: &SavedState| {
            usable_entry_is_installed(&own, KUBECONFIG, mode, found, saved)
        };
        let [mut lenient, mut elsewhere, mut invalid] = [2; 3].map(|port| entry(port, Some("ns")));
        lenient["linkerd"]["inbound-ports-to-ignore"] = json!(["http"]);
        elsewhere["kubernetes"]["kubeconfig"] = json!("/elsewhere");
        invalid["linkerd"]["incoming-proxy-port"] = json!("many");
        assert!(!is_usable(&ChainMode::Every, &found(&[]), &saved));
        for (installed, expected) in [
            (entry(1, Some("ns")), true),
            (entry(2, Some("ns")), true),
            (lenient, true),
            (elsewhere, false),
            (invalid, false),
        ] {
            let found = found(&[&installed]);
            assert_eq!(is_usable(&ChainMode::Every, &found, &saved), expected, "{installed}");
        }
        // The runtime does not call the entry.
        let mut configs = found(&[]);
        configs.extend(found(&[&entry(1, Some("ns"))]));
        configs[1].name = "20-net.conflist".into();
        assert!(!is_usable(&ChainMode::Every, &configs, &saved));
        assert!(is_usable(&ChainMode::Only("20-net.conflist".into()), &configs, &saved));
        // The newer agent chains only that file, or another one that has no entry.
        for (only, expected) in [("20-net.conf", true), ("10-net.conflist", false)] {
            saved.only_config = Some(only.into());
            assert_eq!(is_usable(&ChainMode::Every, &configs, &saved), expected, "{only}");
        }
    }

    #[test]
    fn a_plugin_entry_without_agent_namespace_may_be_upstreams() {
        let with = |namespace| entry(1, namespace);
        for (own, is_exact, installed, expected) in [
            (with(Some("x")), false, entry(2, None), true),
            (with(Some("x")), true, entry(2, Some("y")), false),
            (with(Some("x")), true, with(Some("x")), false),
            (with(None), false, entry(2, None), false),
            (with(None), true, entry(2, None), true),
            (with(None), true, with(None), false),
            (with(None), true, json!({"type": "portmap"}), false),
        ] {
            let mut own = Entry::new(&own.to_string(), "").unwrap();
            own.is_exact = is_exact;
            assert_eq!(
                is_chained_by_upstream(&ChainMode::Every, &found(&[&installed]), &own),
                expected,
                "{installed}"
            );
        }
    }
}
