//! Decides when the process restarts, to enter network namespaces that were mounted after its
//! start (docs/decisions/0012-netns-mounts-without-propagation.md).
//!
//! A tenant can start pods all the time that seem to need such a restart, with a validator that
//! exits 95. The restarts must not bring the container into CrashLoopBackOff: the agent's pod would
//! not be ready, and pods that need a repair would wait for minutes.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use super::find::plugin_config;

/// Age of the process from which on the kubelet restarts its container without a wait: the kubelet
/// forgets earlier restarts of a container that ends more than 600 s after them (`HasExpiredFunc`
/// in <https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/kubelet.go>).
const FREE_RESTART: Duration = Duration::from_secs(600);

/// Time within which the container runtime loads a network config after the config was written.
const RUNTIME_RELOAD: Duration = Duration::from_secs(5);

/// When the process may restart.
pub struct RestartPolicy {
    began: Instant,
    plugin_works_since: OnceLock<SystemTime>,
}

impl RestartPolicy {
    pub fn at_start() -> Self {
        RestartPolicy { began: Instant::now(), plugin_works_since: OnceLock::new() }
    }

    /// Returns since when the runtime calls the plugin for each new pod: since the active conflist
    /// in `net_dir` got the plugin entry, which may have been long before the start of this
    /// process. `None` without a plugin entry. To be called while the agent is ready.
    ///
    /// The first result is kept. Otherwise a program that keeps overwriting the conflist would
    /// allow one restart after the other, as each new write would make more pods seem older than
    /// the plugin.
    pub fn plugin_works_since(&self, net_dir: &Path) -> Option<SystemTime> {
        if let Some(since) = self.plugin_works_since.get() {
            return Some(*since);
        }
        let written = plugin_config::written_at(net_dir)?;
        let since = plugin_works_since(written, SystemTime::now());
        Some(*self.plugin_works_since.get_or_init(|| since))
    }

    /// Returns the time until the process may restart for a pod whose netns was made at `made`.
    pub fn wait(&self, made: SystemTime, net_dir: &Path) -> Duration {
        wait(made, self.plugin_works_since(net_dir), self.began.elapsed())
    }
}

fn plugin_works_since(written: SystemTime, now: SystemTime) -> SystemTime {
    // A date in the future shows that the node's clock was set back, so use the present time.
    if written > now { now } else { written + RUNTIME_RELOAD }
}

/// Returns the time until a process of this age may restart. A pod from before the plugin needs a
/// repair, and the next process can enter its netns. So that restart is immediate, and is not
/// repeated. Any other restart waits until the kubelet restarts the container without a wait of its
/// own. This also bounds the restarts for a netns file with a wrong date, such as one in the
/// future, which each new process finds again.
fn wait(made: SystemTime, plugin_works_since: Option<SystemTime>, age: Duration) -> Duration {
    if let Some(since) = plugin_works_since
        && made < since
    {
        return Duration::ZERO;
    }
    FREE_RESTART.saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_restart_is_immediate_only_for_a_pod_from_before_the_plugin_or_after_10_minutes() {
        let now = SystemTime::now();
        let (earlier, later) = (now - seconds(1), now + seconds(3600));
        for (name, made, since, age, expected) in [
            ("older than the plugin", earlier, Some(now), 5, 0),
            ("started by the plugin", now, Some(now), 5, 595),
            ("started by the plugin, old process", now, Some(now), 600, 0),
            ("file from the future", later, Some(now), 60, 540),
            ("no plugin entry", earlier, None, 60, 540),
        ] {
            assert_eq!(wait(made, since, seconds(age)), seconds(expected), "{name}");
        }
    }

    #[test]
    fn the_plugin_works_some_seconds_after_the_conflist_was_written() {
        let now = SystemTime::now();
        for (name, written, expected) in [
            ("written now", now, now + RUNTIME_RELOAD),
            ("written by an earlier agent", now - seconds(3600), now - seconds(3595)),
            ("file from the future", now + seconds(3600), now),
        ] {
            assert_eq!(plugin_works_since(written, now), expected, "{name}");
        }
    }
}
