//! What is wrong with a part of the node. Pure.

/// Why a part of the node is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Normal right after a start, such as a missing token. Not logged, but the node is not ready.
    Waiting(String),
    /// Logged like a problem, but without effect on readiness and on the time of the next pass.
    Warning(String),
    /// Logged; the next pass runs soon. The node is not ready if
    /// [`Subject::decides_readiness`](crate::agent::subject::Subject::decides_readiness).
    Problem(String),
}
