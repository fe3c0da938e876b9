//! Times in which something outside of the plugin's promises held pods back, or changed the node's files.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after an outage in which its consequences go on: kubelet and the controllers retry after up to 15 s.
pub const RETRY: Duration = Duration::from_secs(20);

/// What an outage holds back or changes.
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
    /// The copy of the node's pods is damaged, its watch is cut, or a new agent fills it.
    Copy,
}

struct Outage {
    cause: Cause,
    begin: Instant,
    end: Option<Instant>,
}

/// All outages so far.
#[derive(Clone, Default)]
pub struct Outages(Arc<Mutex<Vec<Outage>>>);

/// An open outage. Dropping the value closes it.
pub struct OpenOutage {
    outages: Outages,
    cause: Cause,
}

impl Outages {
    pub fn open(&self, cause: Cause) -> OpenOutage {
        let outage = Outage { cause, begin: Instant::now(), end: None };
        self.with(|all| all.push(outage));
        OpenOutage { outages: self.clone(), cause }
    }

    pub fn is_open(&self, cause: Cause) -> bool {
        self.with(|all| all.iter().any(|outage| outage.cause == cause && outage.end.is_none()))
    }

    /// Whether there was an outage of this cause after `begin`, or shortly before.
    pub fn since(&self, cause: Cause, begin: Instant) -> bool {
        self.with(|all| {
            let mut of_cause = all.iter().filter(|outage| outage.cause == cause);
            of_cause.any(|outage| outage.end.is_none_or(|end| end + RETRY >= begin))
        })
    }

    /// Whether there was an outage of this cause, or its retries, at the time that is `age` ago.
    pub fn was_open(&self, cause: Cause, age: Duration) -> bool {
        self.with(|all| {
            let mut of_cause = all.iter().filter(|outage| outage.cause == cause);
            of_cause.any(|outage| {
                let ended = outage.end.map_or(Duration::ZERO, |end| (end + RETRY).elapsed());
                outage.begin.elapsed() >= age && ended <= age
            })
        })
    }

    /// The time from `begin` until now that is in no outage of these causes, nor in the retries after it.
    pub fn elapsed_outside(&self, causes: &[Cause], begin: Instant) -> Duration {
        let now = Instant::now();
        let mut inside: Vec<(Instant, Instant)> = self.with(|all| {
            let of_causes = all.iter().filter(|outage| causes.contains(&outage.cause));
            let spans = of_causes.map(|outage| {
                let end = outage.end.map_or(now, |end| end + RETRY);
                (outage.begin.max(begin), end.min(now))
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

    fn with<T>(&self, use_all: impl FnOnce(&mut Vec<Outage>) -> T) -> T {
        use_all(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for OpenOutage {
    fn drop(&mut self) {
        let is_open = |outage: &&mut Outage| outage.cause == self.cause && outage.end.is_none();
        self.outages.with(|all| {
            if let Some(outage) = all.iter_mut().find(is_open) {
                outage.end = Some(Instant::now());
            }
        });
    }
}
