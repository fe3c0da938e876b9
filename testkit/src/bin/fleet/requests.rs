//! The requests of the fleet, from the API server's audit log.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::Value;

/// Reads what the API server appended since the last read.
pub struct AuditLog {
    path: PathBuf,
    /// Requests that were already returned: each has a record per stage.
    seen: HashSet<String>,
}

/// One request of an agent or a repair controller.
#[derive(Clone, Debug)]
pub struct Request {
    pub received: SystemTime,
    /// Program and verb, e.g. `agent create`.
    pub kind: String,
    pub uri: String,
    pub status: u64,
}

impl AuditLog {
    pub fn new(path: PathBuf) -> AuditLog {
        AuditLog { path, seen: HashSet::new() }
    }

    /// Requests that were logged since the last call.
    pub fn read(&mut self) -> anyhow::Result<Vec<Request>> {
        let mut requests = Vec::new();
        for line in BufReader::new(File::open(&self.path)?).lines() {
            // A killed API server may leave part of a line.
            let record: Value = serde_json::from_str(&line?).unwrap_or_default();
            let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
            let program = match text("userAgent").split('/').next() {
                Some("linkerd2-cni-install") => "agent",
                Some("linkerd-cni-repair-controller") => "repair controller",
                _ => continue,
            };
            if self.seen.insert(text("auditID")) {
                requests.push(Request {
                    received: humantime::parse_rfc3339(&text("requestReceivedTimestamp"))?,
                    kind: format!("{program} {}", text("verb")),
                    uri: text("requestURI"),
                    status: record["responseStatus"]["code"].as_u64().unwrap_or_default(),
                });
            }
        }
        Ok(requests)
    }
}

/// Largest number of requests in one second, counted in steps of a tenth of a second.
pub fn peak_per_second(requests: &[Request]) -> usize {
    let mut tenths: BTreeMap<u128, usize> = BTreeMap::new();
    for request in requests {
        let since = request.received.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        *tenths.entry(since.as_millis() / 100).or_default() += 1;
    }
    let windows = tenths.keys().map(|begin| tenths.range(begin..&(begin + 10)));
    windows.map(|window| window.map(|(_, count)| count).sum()).max().unwrap_or_default()
}

/// Time from the first to the last request.
pub fn span(requests: &[Request]) -> Duration {
    let times = || requests.iter().map(|request| request.received);
    let ends = times().min().zip(times().max());
    ends.and_then(|(first, last)| last.duration_since(first).ok()).unwrap_or_default()
}
