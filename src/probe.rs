//! Verifies an installation; `helm test` runs it from the agent's image.
//!
//! In a meshed pod, one container serves the proxy's ports in place of the proxy, and another
//! container connects to an address that no host has. Only the redirect rules can lead this
//! connection to the first container. A second, unmeshed pod compares the nodes of the DaemonSet
//! with those whose agent is ready.

pub mod redirection;
pub mod rollout;

use std::thread;
use std::time::{Duration, Instant};

/// Timeout of one attempt: for connecting, and for each read.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Repeats `attempt` until it succeeds. Returns its error if it fails after `budget`.
fn retry<T>(budget: Duration, mut attempt: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(problem) if start.elapsed() < budget => tracing::debug!("{problem:#}"),
            result => return result,
        }
        thread::sleep(PAUSE);
    }
}
