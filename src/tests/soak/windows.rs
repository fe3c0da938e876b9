//! Times in which something outside of the plugin's promises held pods back, or changed the node's files.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after a window in which its consequences go on: kubelet and the controllers retry after up to 15 s.
const RETRY: Duration = Duration::from_secs(20);

/// What a window holds back or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The API server does not answer: pods created through it do not reach kubelet.
    ApiServer,
    /// Kubelet or the container runtime start no pods.
    Node,
    /// The API server rejects the plugin's token: meshed pods without the injector's mark wait.
    Credential,
    /// The conflist is missing.
    NoConflist,
    /// Another writer replaced the conflist by one without the plugin entry.
    Unchained,
    /// The kubeconfig is missing.
    NoKubeconfig,
}

struct Window {
    cause: Cause,
    begin: Instant,
    end: Option<Instant>,
}

/// All windows so far.
#[derive(Clone, Default)]
pub struct Windows(Arc<Mutex<Vec<Window>>>);

/// An open window. Dropping the value closes it.
pub struct Open {
    windows: Windows,
    cause: Cause,
}

impl Windows {
    pub fn open(&self, cause: Cause) -> Open {
        let window = Window { cause, begin: Instant::now(), end: None };
        self.with(|all| all.push(window));
        Open { windows: self.clone(), cause }
    }

    pub fn is_open(&self, cause: Cause) -> bool {
        self.with(|all| all.iter().any(|window| window.cause == cause && window.end.is_none()))
    }

    /// Whether there was a window of this cause after `begin`, or shortly before.
    pub fn since(&self, cause: Cause, begin: Instant) -> bool {
        self.with(|all| {
            let mut of_cause = all.iter().filter(|window| window.cause == cause);
            of_cause.any(|window| window.end.is_none_or(|end| end + RETRY >= begin))
        })
    }

    /// The time from `begin` until now that is in no window of these causes, nor in the retries after it.
    pub fn elapsed_outside(&self, causes: &[Cause], begin: Instant) -> Duration {
        let now = Instant::now();
        let mut inside: Vec<(Instant, Instant)> = self.with(|all| {
            let of_causes = all.iter().filter(|window| causes.contains(&window.cause));
            let spans = of_causes.map(|window| {
                let end = window.end.map_or(now, |end| end + RETRY);
                (window.begin.max(begin), end.min(now))
            });
            spans.filter(|(from, to)| from < to).collect()
        });
        inside.sort();
        let (mut outside, mut covered) = (Duration::ZERO, begin);
        for (from, to) in inside {
            outside += from.saturating_duration_since(covered);
            covered = covered.max(to);
        }
        outside + now.saturating_duration_since(covered)
    }

    fn with<T>(&self, use_all: impl FnOnce(&mut Vec<Window>) -> T) -> T {
        use_all(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let is_open = |window: &&mut Window| window.cause == self.cause && window.end.is_none();
        self.windows.with(|all| {
            if let Some(window) = all.iter_mut().find(is_open) {
                window.end = Some(Instant::now());
            }
        });
    }
}
