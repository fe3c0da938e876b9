//! Bugs that tests seed into the model, to show that it finds them.

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
    /// The older agent does not yield to the newer one.
    NoYielding,
    /// HTTP 403 counts as proof of an uninstall.
    ForbiddenIsProof,
    /// Tokens that were rejected before SIGTERM count as proof of an uninstall.
    StaleRejectionIsProof,
}
