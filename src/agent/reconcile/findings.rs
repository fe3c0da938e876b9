//! What is wrong with a part of the node. Pure.

/// Why a part of the node is not correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Something is missing that is normally missing right after a start, such as a token. The node
    /// is not ready, but nothing is logged.
    Waiting(String),
    /// Logged like a problem, but without effect on readiness and on the time of the next pass.
    Warning(String),
    /// Logged, and the next pass runs soon. The node is not ready if this subject decides on
    /// readiness
    /// ([`Subject::decides_readiness`](crate::agent::subject::Subject::decides_readiness)).
    Problem(String),
}
