//! When to take the startup taint off the node.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::schedule::between;
use crate::agent::settings::Settings;
use crate::agent::taint;
use crate::kube::backoff::Backoff;
use crate::kube::connection::Connection;

/// Shortest and longest time until the node is looked at again: a Node that registers again under
/// the same name may have the taint once more.
const AGAIN: [Duration; 2] = [Duration::from_secs(20 * 60), Duration::from_secs(30 * 60)];

/// The taint, if there is one to take off, and when to look at it.
pub struct Untaint {
    what: Option<(String, String)>,
    due: Instant,
    backoff: Backoff,
    said: Option<String>,
}

impl Untaint {
    pub fn of(settings: &Settings, now: Instant) -> Untaint {
        let (node, key) = (settings.node.clone(), settings.startup_taint.clone());
        if key.is_some() && node.is_none() {
            warn!("the startup taint stays: LINKERD_CNI_NODE_NAME is not set");
        }
        Untaint {
            what: node.zip(key),
            due: now,
            backoff: Backoff::default(),
            said: None,
        }
    }

    /// Takes the taint off if it is time and all on the node is right. Returns when to
    /// come again, if only time is waited for.
    pub fn look(
        &mut self,
        connection: &mut Connection,
        verified: bool,
        now: Instant,
    ) -> Option<Instant> {
        let (node, key) = self.what.as_ref().filter(|_| verified)?;
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
                    info!("took the startup taint {key} off node {node}");
                } else if self.said.is_some() {
                    info!("the startup taint {key} is off node {node}");
                }
                self.said = None;
                self.backoff.reset();
                again()
            }
            Err(why) => {
                let why = format!("the startup taint {key} cannot be taken off node {node}: {why}");
                if self.said.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.said = Some(why);
                self.backoff.next_delay()
            }
        };
        self.due = Instant::now() + wait;
        Some(self.due)
    }
}

/// Time until the next look at a node without the taint.
pub fn again() -> Duration {
    between(AGAIN[0], AGAIN[1])
}
