//! Removes the startup taint from the node once the node is ready.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::problem_log::LastProblem;
use crate::agent::settings::Settings;
use crate::agent::taint;
use crate::backoff::{Backoff, Limits, between};
use crate::kube::connection::Connection;

/// Shortest and longest time until the Node is read again after the taint was removed. A Node that
/// registers again under the same name may have the taint again.
const RECHECK: [Duration; 2] = [Duration::from_secs(20 * 60), Duration::from_secs(30 * 60)];

/// Time between two tries after a failure.
const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(30)];

/// The taint to remove, and when to try next.
pub struct Untaint {
    /// Name of the node, and key of the taint; `None` if no startup taint is configured.
    target: Option<(String, String)>,
    due: Instant,
    backoff: Backoff,
    last_problem: LastProblem<String>,
}

impl Untaint {
    pub fn of(settings: &Settings, now: Instant) -> Untaint {
        let (node, key) = (settings.node.clone(), settings.startup_taint.clone());
        if key.is_some() && node.is_none() {
            warn!("the startup taint stays: LINKERD_CNI_NODE_NAME is not set");
        }
        Untaint {
            target: node.zip(key),
            due: now,
            backoff: Backoff::new(RETRY),
            last_problem: LastProblem::default(),
        }
    }

    /// Removes the taint if the node is ready and a try is due. Returns when the next try is due;
    /// `None` if the node is not ready or no startup taint is configured.
    pub fn run(
        &mut self,
        connection: &mut Connection,
        node_ready: bool,
        now: Instant,
    ) -> Option<Instant> {
        let (node, key) = self.target.as_ref().filter(|_| node_ready)?;
        if now < self.due {
            return Some(self.due);
        }
        let client = connection.client().map_err(|error| error.to_string());
        let removed = client.and_then(|client| {
            taint::remove(&client, node, key).map_err(|error| error.to_string())
        });
        let wait = match removed {
            Ok(removed) => {
                let resolved = self.last_problem.resolve();
                if removed {
                    info!("took the startup taint {key} off node {node}");
                } else if resolved {
                    info!("the startup taint {key} is off node {node}");
                }
                self.backoff.reset();
                recheck_wait()
            }
            Err(why) => {
                let why = format!("the startup taint {key} cannot be taken off node {node}: {why}");
                if self.last_problem.is_new(why.clone()) {
                    warn!("{why}");
                }
                self.backoff.next_delay()
            }
        };
        self.due = Instant::now() + wait;
        Some(self.due)
    }
}

/// Time until the Node is read again after the taint was removed.
pub fn recheck_wait() -> Duration {
    between(RECHECK[0], RECHECK[1])
}
