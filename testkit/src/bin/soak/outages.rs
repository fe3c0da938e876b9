//! Outages: times in which something that is not the plugin's fault held pods back, or changed the
//! node's files. Pods and files are not judged by the usual bounds during an outage.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testkit::OnDrop;

/// Time after an outage in which pods may still be late because of it. It is long, because kubelet
/// and the controllers retry after up to 15 s.
pub const RETRY: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The API server does not respond, so pods that are created through it do not reach kubelet.
    ApiServer,
    /// Kubelet or the container runtime start no pods.
    Node,
    /// The API server rejects the plugin's token, so meshed pods without the injector's mark wait.
    Credential,
    NoConflist,
    /// Another writer replaced the conflist by one without the plugin entry.
    Unchained,
    NoKubeconfig,
    /// The container runtime cannot run the plugin.
    Runtime,
}

/// The outages since the start, each with its end. `None`: the outage goes on.
static OUTAGES: Mutex<Vec<(Cause, Option<Instant>)>> = Mutex::new(Vec::new());

fn outages() -> MutexGuard<'static, Vec<(Cause, Option<Instant>)>> {
    OUTAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins an outage, which ends when the returned value is dropped.
pub fn open(cause: Cause) -> OnDrop<impl FnMut()> {
    outages().push((cause, None));
    OnDrop(move || {
        let mut outages = outages();
        if let Some((_, end)) = outages.iter_mut().find(|outage| **outage == (cause, None)) {
            *end = Some(Instant::now());
        }
    })
}

pub fn is_open(cause: Cause) -> bool {
    outages().contains(&(cause, None))
}

/// Returns when the consequences of the last outage of these causes end: [`RETRY`] after its end,
/// or after now if it goes on. `None`: there was no such outage.
fn last_end(causes: &[Cause]) -> Option<Instant> {
    let outages = outages();
    let selected = outages.iter().filter(|(cause, _)| causes.contains(cause));
    selected.map(|(_, end)| end.unwrap_or_else(Instant::now) + RETRY).max()
}

/// Returns the time since `begin`, or since the last outage of these causes if that ended later.
/// Zero during an outage.
pub fn undisturbed_time(causes: &[Cause], begin: Instant) -> Duration {
    let start = match last_end(causes) {
        Some(end) => end.max(begin),
        None => begin,
    };
    start.elapsed()
}

/// Whether an outage of these causes, or its consequences, lasted until after `begin`.
pub fn was_disturbed(causes: &[Cause], begin: Instant) -> bool {
    last_end(causes).is_some_and(|end| end > begin)
}
