//! Times in which something outside of the plugin's promises held pods back, or changed the node's
//! files.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testkit::OnDrop;

/// Time after an outage in which its consequences go on: kubelet and the controllers retry after up
/// to 15 s.
pub const RETRY: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The API server does not answer: pods created through it do not reach kubelet.
    ApiServer,
    /// Kubelet or the container runtime start no pods.
    Node,
    /// The API server rejects the plugin's token: meshed pods without the injector's mark wait.
    Credential,
    NoConflist,
    /// Another writer replaced the conflist by one without the plugin entry.
    Unchained,
    NoKubeconfig,
}

static OUTAGES: Mutex<Vec<(Cause, Option<Instant>)>> = Mutex::new(Vec::new());

fn outages() -> MutexGuard<'static, Vec<(Cause, Option<Instant>)>> {
    OUTAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn open(cause: Cause) -> OnDrop<impl FnMut()> {
    outages().push((cause, None));
    OnDrop(move || {
        if let Some((_, end)) = outages().iter_mut().find(|outage| **outage == (cause, None)) {
            *end = Some(Instant::now());
        }
    })
}

pub fn is_open(cause: Cause) -> bool {
    outages().contains(&(cause, None))
}

/// End of the last outage of these causes with its retries, which is now or later during an outage.
fn last(causes: &[Cause]) -> Option<Instant> {
    let outages = outages();
    let of_causes = outages.iter().filter(|(cause, _)| causes.contains(cause));
    of_causes.map(|(_, end)| end.unwrap_or_else(Instant::now) + RETRY).max()
}

/// Time since `begin`, and since the last outage of these causes. Zero during an outage.
pub fn calm(causes: &[Cause], begin: Instant) -> Duration {
    last(causes).map_or(begin, |last| last.max(begin)).elapsed()
}

pub fn since(causes: &[Cause], begin: Instant) -> bool {
    last(causes).is_some_and(|last| last > begin)
}
