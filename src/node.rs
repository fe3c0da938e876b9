//! The agent's files on the node: plugin binaries, kubeconfig and plugin entries. Installs and
//! uninstalls them.
//!
//! - [`settings`]: where the files are
//! - [`lock`]: lets only one agent at a time write to the node's files
//! - [`mounts`]: notices that a mounted directory is no longer the node's
//! - [`binaries`]: compares the plugin binaries with those of the image
//! - [`steps`]: applies one step of an install or uninstall to the network configs
//! - [`observe`]: reads the network configs and the saved state once a pass
//! - [`leftovers`]: removes what earlier agents left
//! - [`uninstall`]: removes everything from the node

pub mod binaries;
pub mod leftovers;
pub mod lock;
pub mod mounts;
pub mod observe;
pub mod settings;
pub mod steps;
pub mod uninstall;

/// Words of each problem of contention. `linkerd cni check` finds these problems by them.
pub const OVERWRITTEN: &str = "keeps being overwritten by another writer";
