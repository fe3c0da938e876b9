//! The limits that a fleet must keep, as `--check` tests them.

use crate::audit_log::Request;
use crate::phase::{Phase, WATCHES};
use crate::report::Run;

/// Requests of one node at its start: TokenRequest, DaemonSet, token check, a list and a watch of
/// both programs, and three retries.
const REQUESTS_AT_START: usize = 10;
/// Requests of one node after a restart of the API server. Of both programs: a watch from a version
/// that is too old, a list and a watch, and three rejected attempts while the API server fills its caches.
const REQUESTS_AFTER_RESTART: usize = 12;

/// Returns a sentence for each limit that `run` breaks.
pub fn broken_limits(run: &Run) -> Vec<String> {
    let mut broken = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            broken.push(format!("{} nodes: {what}", run.nodes));
        }
    };
    for (name, phase) in [("start", &run.start), ("idle", &run.idle), ("restart", &run.restart)] {
        let watches = phase.watches;
        check(watches == WATCHES * run.nodes, format!("{name}: {watches} watches"));
        let lists = phase.etcd_pod_lists;
        // Filling a cache takes one list, whatever the number of nodes.
        check(lists <= 2, format!("{name}: etcd answered {lists} lists of pods"));
        let uncached = phase.requests.iter().find(|request| is_uncached_list(request));
        check(uncached.is_none(), format!("{name}: a list not from the cache: {uncached:?}"));
    }
    let most = |phase: &Phase, each: usize| phase.requests.len() <= each * run.nodes;
    let count = |phase: &Phase| format!("{} requests", phase.requests.len());
    check(most(&run.start, REQUESTS_AT_START), format!("start: {}", count(&run.start)));
    check(most(&run.restart, REQUESTS_AFTER_RESTART), format!("restart: {}", count(&run.restart)));
    let idle_limit = run.nodes as f64 * run.idle.span.as_secs_f64() / 300.0;
    check((run.idle.requests.len() as f64) <= idle_limit, format!("idle: {}", count(&run.idle)));
    // Clients retry over 5 s. Without that, all would return in the same instant.
    let peak = run.restart.peak_per_second();
    let most_at_once = run.restart.requests.len() * 2 / 3;
    check(peak <= most_at_once, format!("restart: {peak} requests in one second"));
    broken
}

fn is_uncached_list(request: &Request) -> bool {
    request.kind.ends_with(" list")
        && (!request.uri.contains("resourceVersion=0") || request.uri.contains("limit="))
}
