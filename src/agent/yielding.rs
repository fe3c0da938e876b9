//! Decides when to yield to another agent on this node. To yield means to leave the plugin entry of
//! the other agent in the network configs until that agent ends.
//!
//! Two agents run side by side during a rolling update with `maxSurge`. If both insisted on their
//! own plugin entry, neither would become ready and the rollout would never end. So this agent
//! yields
//! - to a newer agent of this project, as long as that agent runs. The record socket shows whether
//!   there is one. Its plugin binary and kubeconfig stay in use, too.
//! - to an upstream agent, which restores its plugin entry within milliseconds after any change. An
//!   upstream agent does not notice that its plugin binary or its kubeconfig was replaced, so this
//!   agent installs its own. It does not if the API server has a host name, because only upstream's
//!   plugin resolves names. If the container of the upstream agent restarts during an upgrade, that
//!   agent reads the ConfigMap of this release, so its entry may look like this project's.
//!
//! The plugin entry does not show whether the upstream agent that wrote it still runs. This agent
//! finds out by overwriting the entry, because a running agent restores it. So it writes its own
//! entry from time to time.
//!
//! This agent does not yield to a program that removes the plugin entry. That is contention.

use std::time::{Duration, Instant};

use crate::backoff::between;
use crate::conflist::Entry;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;

/// Time within which an upstream agent restores its plugin entry, also on a busy node.
pub const RESTORED_WITHIN: Duration = Duration::from_secs(2);

/// Another agent on the node, whose files stay in use.
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
    /// Whether this agent's own entry was found, or was to be written, in the last pass that found
    /// an entry at all. If the next pass finds an upstream entry instead, an upstream agent runs.
    had_own_entry: bool,
    /// When this agent last wrote its own entry over an upstream one, to find out whether the
    /// upstream agent restores it.
    tried_at: Option<Instant>,
    /// When this agent stops yielding to an upstream agent and writes its own entry. `None` if it
    /// does not yield to one.
    pub until: Option<Instant>,
}

impl Yielding {
    pub fn new(period: Duration) -> Yielding {
        Yielding { period, had_own_entry: false, tried_at: None, until: None }
    }

    /// Returns the plugin entry of another agent, in one of the network configs `found`, to which
    /// this agent yields. `None` if this agent does not yield. Then the caller has to write the
    /// `own` entry. `kubeconfig` is the path on the host of the kubeconfig that this agent keeps
    /// correct. `mode` is this agent's chain mode.
    pub fn choose(
        &mut self,
        own: &Entry,
        kubeconfig: &str,
        mode: &ChainMode,
        found: &[ConfigFile],
        newer_agent_runs: bool,
        now: Instant,
    ) -> Option<(OtherAgent, Entry)> {
        let installed = installed_entry(kubeconfig, mode, found, newer_agent_runs);
        let Some((file, entry)) = installed else {
            // There is no entry, so no upstream agent runs: it would have restored its entry at
            // once.
            self.tried_at = None;
            return None;
        };
        let is_converted = !newer_agent_runs && is_converted_by_upstream(mode, file);
        if own.matches(entry.text()) && !is_converted {
            self.had_own_entry = true;
            self.until = None;
            return None;
        }
        if !entry.is_usable(kubeconfig) {
            return None;
        }
        if newer_agent_runs {
            self.had_own_entry = false;
            return Some((OtherAgent::Newer, entry));
        }
        // While an upstream agent may run, the entry may be of that agent, in spite of its keys.
        let may_be_upstreams = own.is_foreign(entry.text()) || own.is_exact || is_converted;
        if !may_be_upstreams {
            // The entry is that of an older agent of this project, which yields to this one.
            return None;
        }
        if self.yields_to_upstream(now) {
            return Some((OtherAgent::Upstream, entry));
        }
        None
    }

    /// Returns whether this agent yields to the upstream agent whose entry is installed. If not, the
    /// caller overwrites that entry, to find out whether the upstream agent still runs.
    fn yields_to_upstream(&mut self, now: Instant) -> bool {
        if self.had_own_entry {
            // An upstream agent has just replaced this agent's entry, so it runs.
            self.had_own_entry = false;
            self.until = Some(now + between(self.period * 2 / 3, self.period));
        }
        if let Some(until) = self.until
            && now < until
        {
            return true;
        }
        self.until = None;
        self.had_own_entry = true;
        self.tried_at = Some(now);
        false
    }

    /// Returns whether an upstream agent may still restore the entry that this agent has replaced.
    pub fn is_trying(&self, now: Instant) -> bool {
        self.tried_at.is_some_and(|tried_at| now < tried_at + RESTORED_WITHIN)
    }
}

/// Returns the plugin entry on which [`Yielding::choose`] decides, and its file. `None` if there is
/// no valid entry.
fn installed_entry<'f>(
    kubeconfig: &str,
    mode: &ChainMode,
    found: &'f [ConfigFile],
    newer_agent_runs: bool,
) -> Option<(&'f ConfigFile, Entry)> {
    let file = if mode.only_config().is_some() && !newer_agent_runs {
        // An entry in other files than that of this mode does not count, because an upstream agent
        // that has ended may have left it.
        plan::chained_config(mode, found)?
    } else {
        plan::installed_config(&ChainMode::Every, found)?
    };
    let entry = entry_in(file, kubeconfig)?;
    Some((file, entry))
}

/// Returns whether an upstream agent made `file` from the standalone config, whatever entry it has:
/// this agent writes the standalone config only under its own name.
fn is_converted_by_upstream(mode: &ChainMode, file: &ConfigFile) -> bool {
    match mode.standalone_config() {
        Some(standalone) => file.name != standalone,
        None => false,
    }
}

/// Returns whether a usable plugin entry is installed. If so, this agent leaves all writes to the
/// newer agent that runs. If both agents wrote, each would remove the other's entries, because this
/// agent does not know the newer agent's chain mode. If no usable entry is installed, this agent
/// has to write one, because the newer agent may be unable to chain the plugin.
///
/// If the runtime does not call the entry in this agent's `mode`, the entry counts only
/// - if the newer agent chains no other file, as the `saved` state says, or
/// - if the runtime calls no network config at all.
pub fn usable_entry_is_installed(
    own: &Entry,
    kubeconfig: &str,
    mode: &ChainMode,
    found: &[ConfigFile],
    saved: &SavedState,
) -> bool {
    if let Some(name) = saved.only_config.clone()
        && let Some(file) = plan::chained_config(&ChainMode::Only(name), found)
    {
        return has_usable_entry(file, own, kubeconfig);
    }
    if let Some(called) = plan::called_config(found) {
        let is_chained =
            called.plugin_entry().is_some() || plan::chained_config(mode, found).is_some();
        if !is_chained {
            return false;
        }
    }
    match plan::installed_config(&ChainMode::Every, found) {
        Some(file) => has_usable_entry(file, own, kubeconfig),
        None => false,
    }
}

/// Returns whether `file` has this agent's `own` plugin entry, or another entry with which the
/// plugin works.
fn has_usable_entry(file: &ConfigFile, own: &Entry, kubeconfig: &str) -> bool {
    match entry_in(file, kubeconfig) {
        Some(entry) => own.matches(entry.text()) || entry.is_usable(kubeconfig),
        None => false,
    }
}

/// Returns the plugin entry in `file`, if it is valid.
fn entry_in(file: &ConfigFile, kubeconfig: &str) -> Option<Entry> {
    Entry::new(file.plugin_entry()?.text, kubeconfig).ok()
}

/// Returns whether an upstream agent may have written a plugin entry in one of the network configs
/// of `mode`. If so, that agent probably runs: this agent would have overwritten the entry in its
/// last pass unless it yields to it. Looking at the network configs of `mode` is enough, because an
/// upstream agent adds its entry to all network configs.
pub fn is_chained_by_upstream(mode: &ChainMode, found: &[ConfigFile], own: &Entry) -> bool {
    let mut entries = plan::selected_configs(mode, found).filter_map(ConfigFile::plugin_entry);
    entries.any(|entry| own.is_foreign(entry.text))
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

    /// Returns the entry with its keys in another order.
    fn reversed(entry: &Value) -> Value {
        let members = entry.as_object().unwrap().clone();
        Value::Object(members.into_iter().rev().collect())
    }

    /// Returns the network configs of a node with one conflist, which has these plugin entries.
    fn found(entries: &[&Value]) -> Vec<ConfigFile> {
        let mut plugins = vec![json!({"type": "bridge"})];
        plugins.extend(entries.iter().map(|entry| (*entry).clone()));
        let text = json!({"name": "n", "plugins": plugins}).to_string();
        let content = Content { text, access: FileAccess::own(0o600), link: None };
        let name = "10-net.conflist".to_owned();
        vec![ConfigFile { name, kind: ConfigKind::Conflist, content: Ok(content) }]
    }

    #[test]
    fn writes_are_left_to_a_newer_agent_if_its_entry_is_usable_and_called() {
        let own = Entry::new(&entry(1, Some("ns")).to_string(), "").unwrap();
        let mut saved = SavedState::default();
        let is_usable = |mode: &ChainMode, found: &[_], saved: &SavedState| {
            usable_entry_is_installed(&own, KUBECONFIG, mode, found, saved)
        };
        let mut with_bad_port = entry(2, Some("ns"));
        with_bad_port["linkerd"]["inbound-ports-to-ignore"] = json!(["http"]);
        let mut with_other_kubeconfig = entry(2, Some("ns"));
        with_other_kubeconfig["kubernetes"]["kubeconfig"] = json!("/elsewhere");
        let mut invalid = entry(2, Some("ns"));
        invalid["linkerd"]["incoming-proxy-port"] = json!("many");
        assert!(!is_usable(&ChainMode::Every, &found(&[]), &saved));
        for (installed, expected) in [
            (entry(1, Some("ns")), true),
            (entry(2, Some("ns")), true),
            (with_bad_port, true),
            (with_other_kubeconfig, false),
            (invalid, false),
        ] {
            let found = found(&[&installed]);
            assert_eq!(is_usable(&ChainMode::Every, &found, &saved), expected, "{installed}");
        }
        // The entry is in a file that the runtime does not load, because another file sorts first.
        let mut configs = found(&[]);
        configs.extend(found(&[&entry(1, Some("ns"))]));
        configs[1].name = "20-net.conflist".into();
        assert!(!is_usable(&ChainMode::Every, &configs, &saved));
        assert!(is_usable(&ChainMode::Only("20-net.conflist".into()), &configs, &saved));
        // According to the saved state, the newer agent chains only the file with the entry, or
        // only the file without an entry.
        for (name, expected) in [("20-net.conf", true), ("10-net.conflist", false)] {
            saved.only_config = Some(name.into());
            assert_eq!(is_usable(&ChainMode::Every, &configs, &saved), expected, "{name}");
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
            // The upstream agent reads the ConfigMap of this release, and formats the entry anew.
            (with(Some("x")), true, reversed(&with(Some("x"))), true),
            (with(Some("x")), false, reversed(&with(Some("x"))), false),
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
