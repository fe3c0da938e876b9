//! Removes the startup taint from the node once the node is ready.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::schedule::between;
use crate::agent::settings::Settings;
use crate::agent::taint;
use crate::kube::backoff::Backoff;
use crate::kube::connection::Connection;

/// Shortest and longest time until the Node is read again after the taint was removed. A Node that
/// registers again under the same name may have the taint again.
const RECHECK: [Duration; 2] = [Duration::from_secs(20 * 60), Duration::from_secs(30 * 60)];

/// The taint to remove, and when to try next.
pub struct Untaint {
    /// Name of the node, and key of the taint; `None` if no startup taint is configured.
    target: Option<(String, String)>,
    due: Instant,
    backoff: Backoff,
    /// The failure that was logged last; `None` once the taint is removed.
    logged: Option<String>,
}

impl Untaint {
    pub fn of(settings: &Settings, now: Instant) -> Untaint {
        let (node, key) = (settings.node.clone(), settings.startup_taint.clone());
        if key.is_some() && node.is_none() {
            warn!("cannot remove the startup taint: LINKERD_CNI_NODE_NAME is not set");
        }
        Untaint { target: node.zip(key), due: now, backoff: Backoff::default(), logged: None }
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
                if removed {
                    info!("removed the startup taint {key} from node {node}");
                } else if self.logged.is_some() {
                    info!("node {node} no longer has the startup taint {key}");
                }
                self.logged = None;
                self.backoff.reset();
                recheck_wait()
            }
            Err(why) => {
                let why = format!("cannot remove the startup taint {key} from node {node}: {why}");
                if self.logged.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.logged = Some(why);
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
