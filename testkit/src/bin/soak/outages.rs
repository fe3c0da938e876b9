//! Times in which something outside of the plugin's promises held pods back, or changed the node's files.

use std::sync::{Mutex, MutexGuard, PoisonError};
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
static OUTAGES: Mutex<Vec<Outage>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Outage>> {
    OUTAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open outage. Dropping the value closes it.
pub struct OpenOutage(Cause);

pub fn open(cause: Cause) -> OpenOutage {
    all().push(Outage { cause, begin: Instant::now(), end: None });
    OpenOutage(cause)
}

pub fn is_open(cause: Cause) -> bool {
    all().iter().any(|outage| outage.cause == cause && outage.end.is_none())
}

/// Whether there was an outage of this cause after `begin`, or shortly before.
pub fn since(cause: Cause, begin: Instant) -> bool {
    let ended = |outage: &Outage| outage.end.is_some_and(|end| end + RETRY < begin);
    all().iter().any(|outage| outage.cause == cause && !ended(outage))
}

/// Whether there was an outage of this cause, or its retries, at the time that is `age` ago.
pub fn was_open(cause: Cause, age: Duration) -> bool {
    all().iter().filter(|outage| outage.cause == cause).any(|outage| {
        let ended = outage.end.map_or(Duration::ZERO, |end| (end + RETRY).elapsed());
        outage.begin.elapsed() >= age && ended <= age
    })
}

/// The time from `begin` until now that is in no outage of these causes, nor in the retries after it.
pub fn elapsed_outside(causes: &[Cause], begin: Instant) -> Duration {
    let now = Instant::now();
    let all = all();
    let of_causes = all.iter().filter(|outage| causes.contains(&outage.cause));
    let spans = of_causes.map(|outage| {
        let end = outage.end.map_or(now, |end| end + RETRY);
        (outage.begin.max(begin), end.min(now))
    });
    let mut inside: Vec<(Instant, Instant)> = spans.filter(|(from, to)| from < to).collect();
    inside.sort();
    let (mut outside, mut covered) = (Duration::ZERO, begin);
    for (from, to) in inside {
        outside += from.saturating_duration_since(covered);
        covered = covered.max(to);
    }
    outside + now.saturating_duration_since(covered)
}

impl Drop for OpenOutage {
    fn drop(&mut self) {
        let is_open = |outage: &&mut Outage| outage.cause == self.0 && outage.end.is_none();
        if let Some(outage) = all().iter_mut().find(is_open) {
            outage.end = Some(Instant::now());
        }
    }
}
