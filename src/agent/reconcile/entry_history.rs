//! Remembers for the metrics from which network configs the plugin entry was removed, and how long
//! it was missing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::node::install::network_configs::{Change, ConfigWrite};

/// The plugin entry in the network configs, as earlier passes found and wrote it.
#[derive(Debug, Default)]
pub struct EntryHistory {
    /// Names of all network configs to which this agent ever chained the plugin.
    chained: BTreeSet<String>,
    /// When the last pass found that the active conflist lacked the plugin entry. `None` if the
    /// last pass found the entry.
    lacked_at: Option<Instant>,
}

impl EntryHistory {
    /// Returns the time since the last pass if the active conflist lacked the plugin entry then,
    /// else zero. Time without an active conflist does not count, because no pod can start then.
    pub fn time_without_entry(&mut self, mode: &ChainMode, configs: &[ConfigFile]) -> Duration {
        let lacked_at = self.lacked_at.take();
        if plan::called_config(configs).is_none() {
            return Duration::ZERO;
        }
        if plan::chained_config(mode, configs).is_none() {
            self.lacked_at = Some(Instant::now());
        }
        match lacked_at {
            Some(last_pass) => last_pass.elapsed(),
            None => Duration::ZERO,
        }
    }

    /// Remembers the `writes` of a pass. Returns how many of them restored the plugin entry in a
    /// network config from which another program had removed it.
    pub fn count_restores(&mut self, writes: &[ConfigWrite]) -> u64 {
        let mut restores = 0;
        for write in writes {
            if write.change == Change::Unchain {
                continue;
            }
            let is_first = self.chained.insert(write.name.clone());
            if !is_first && !write.had_entry {
                restores += 1;
            }
        }
        restores
    }
}
