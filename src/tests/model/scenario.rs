//! What a run of the model explores.

use linkerd2_cni::conflist::chain_mode::{ChainMode, STANDALONE};

use crate::agent::Api;
use crate::plans::Planner;

pub const CONFLIST: &str = "10-net.conflist";
pub const CONF: &str = "10-net.conf";
/// A network config that no program but the agents writes, and its text.
pub const SECOND: &str = "20-net.conflist";
pub const SECOND_TEXT: &str = r#"{"name":"second","plugins":[{"type":"ptp"}]}"#;

pub struct Scenario {
    pub name: &'static str,
    pub agents: usize,
    pub plans: Planner,
    pub primary: &'static str,
    /// Whether the node also has [`SECOND`].
    pub has_second: bool,
    pub foreign_writes: u8,
    pub kills: u8,
    /// What the API server may say to the older and to the newer agent.
    pub api: Vec<[Api; 2]>,
    /// Whether the container runtime may show that it cannot run the plugin.
    pub has_evidence: bool,
    /// Whether an agent reads the network configs one by one, so that others can write in between.
    pub reads_one_by_one: bool,
    pub bug: Bug,
}

impl Scenario {
    pub fn new(name: &'static str, modes: [ChainMode; 2], primary: &'static str) -> Scenario {
        Scenario {
            name,
            agents: 2,
            plans: Planner::new(modes),
            primary,
            has_second: false,
            foreign_writes: 1,
            kills: 0,
            api: vec![[Api::DaemonSetDeleted; 2]],
            has_evidence: false,
            reads_one_by_one: false,
            bug: Bug::None,
        }
    }
}

pub fn every() -> ChainMode {
    ChainMode::Every
}

pub fn only(name: &str) -> ChainMode {
    ChainMode::Only(name.to_owned())
}

pub fn standalone() -> ChainMode {
    ChainMode::Standalone(STANDALONE.to_owned())
}

/// Bugs that tests seed into the model, to show that it finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A pass writes the network config before plugin binary and kubeconfig.
    ChainBeforeBinary,
    /// A write of a network config discards what another program wrote since the scan.
    OverwriteWithoutCheck,
    /// The original of a converted config is saved only after its conversion.
    SaveAfterConversion,
    /// Uninstall restores an original over a file that was written since.
    RestoreOverNewerWrite,
    /// Uninstall removes plugin binary and kubeconfig before the plugin entry.
    RemoveBinaryFirst,
    /// Two agents write at the same time.
    NoLock,
    /// The older agent chains the plugin while the newer one has withdrawn it.
    IgnoreRecordOfNewerAgent,
    /// The older agent does not yield to the newer one.
    NoYielding,
    /// HTTP 403 counts as proof of an uninstall.
    ForbiddenIsProof,
    /// Tokens that were rejected before SIGTERM count as proof of an uninstall.
    StaleRejectionIsProof,
    /// Tokens that ended with the agent's pod count as proof of an uninstall.
    ForcedDeletionIsProof,
    /// An older agent with proof leaves at once if a newer one runs.
    LeaveToNewerAgent,
}
