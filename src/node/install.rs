//! Installs the plugin on this node: each step takes what was observed, writes what differs, and
//! returns its outcome.
//!
//! The steps, in this order, so that no network config ever names a plugin that cannot run:
//! 1. [`kubeconfig::replace_host_name`]: a kubeconfig that only upstream's plugin can use is
//!    replaced while upstream's plugin is still on the host.
//! 2. [`binaries`]: the plugin binary. [`run_check`] runs a new binary before it replaces an
//!    earlier one, and the installed binary before it is chained.
//! 3. [`kubeconfig`]: the API server's address, its CA and the plugin's token
//! 4. [`network_configs`]: the plugin entries
//!
//! [`uninstall`](super::uninstall) removes them in the reverse order.

pub mod bin_dir;
pub mod binaries;
pub mod kubeconfig;
pub mod network_configs;
pub mod run_check;

use std::time::Instant;

use super::contention::WrittenFile;

/// Outcome of a step that keeps the plugin binaries or the kubeconfig correct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutcome {
    /// Number of files that the step wrote.
    pub writes: u64,
    /// Why a file is not correct after the step.
    pub problem: Option<String>,
    /// What an operator should check.
    pub warning: Option<String>,
    /// When a write is allowed that the step did not make because of contention.
    pub allowed_at: Option<Instant>,
}

impl StepOutcome {
    fn written(writes: u64) -> StepOutcome {
        StepOutcome { writes, ..StepOutcome::default() }
    }

    fn failed(problem: String) -> StepOutcome {
        StepOutcome { problem: Some(problem), ..StepOutcome::default() }
    }

    fn limited(file: &WrittenFile, allowed_at: Instant) -> StepOutcome {
        StepOutcome { allowed_at: Some(allowed_at), ..StepOutcome::failed(file.to_string()) }
    }
}
