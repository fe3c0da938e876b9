//! What real nodes requested and when, from the API server's audit log.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use linkerd2_cni::backoff::jitter;

use crate::objects::node_name;
use crate::requests::Request;

const NODE: &str = "{node}";
const VERSION: &str = "{version}";
const SECONDS: &str = "{seconds}";

/// Requests of nodes at the first start of their programs, and in a rollout.
pub type Recording = [Vec<Chain>; 2];

/// Successful requests of one program, each sent after the response to the previous one.
#[derive(Clone)]
pub struct Chain {
    pub program: String,
    pub is_pods: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone)]
pub struct Step {
    pub request: Request,
    /// The URI with placeholders.
    pub uri: String,
    /// Times from the previous response, or from the program's start, to the request.
    pub gaps: Distribution,
    /// Times that the watch was to last. Empty if the request is no watch.
    pub lifetimes: Distribution,
}

impl Step {
    /// Returns the URI of a node's request, for a watch from this version with this lifetime.
    pub fn uri(&self, node: usize, version: &str, lifetime: Duration) -> String {
        let uri = self.uri.replace(NODE, &node_name(node)).replace(VERSION, version);
        uri.replace(SECONDS, &lifetime.as_secs().to_string())
    }
}

#[derive(Clone, Default)]
pub struct Distribution(Vec<Duration>);

impl Distribution {
    /// Returns a random time between two neighbours of the recorded times, each pair with the same
    /// probability.
    pub fn draw(&self) -> Duration {
        let last_index = self.0.len().saturating_sub(1);
        // A random number between 0 and the last index.
        let position = jitter(Duration::from_secs(last_index as u64)).as_secs_f64();
        let low = self.0[position.floor() as usize];
        let high = self.0[position.ceil() as usize];
        low + (high - low).mul_f64(position.fract())
    }
}

/// Records the requests of all nodes. `start_times` are those of the programs of each node.
pub fn record<'a>(
    requests: impl Iterator<Item = &'a Request>,
    start_times: &[Vec<SystemTime>],
) -> Recording {
    let mut chains: BTreeMap<(usize, &str, bool), Vec<Step>> = BTreeMap::new();
    // For each chain of each node: index of the next step, and end of the step before it.
    let mut positions = HashMap::new();
    for request in requests.filter(|request| request.status < 400) {
        let Some(node) = request.node else { continue };
        let is_before = |time: &SystemTime| *time <= request.received;
        let Some(life) = start_times[node].iter().rposition(is_before) else { continue };
        let chain = (life, &*request.program, request.uri.starts_with("/api/v1/pods?"));
        let (index, previous_end) =
            positions.entry((node, chain)).or_insert((0, start_times[node][life]));
        let (uri, lifetime) = template(request, node);
        let steps = chains.entry(chain).or_default();
        // From its second time on, a periodic request is one step.
        if *index > 1 && steps[*index - 2..*index].iter().all(|step| step.uri == uri) {
            *index -= 1;
        }
        if steps.len() == *index {
            steps.push(Step {
                request: request.clone(),
                uri: uri.clone(),
                gaps: Distribution::default(),
                lifetimes: Distribution::default(),
            });
        }
        let step = &mut steps[*index];
        if step.uri == uri {
            let gap = request.received.duration_since(*previous_end).unwrap_or_default();
            step.gaps.0.push(gap);
            step.lifetimes.0.extend(lifetime);
            *index += 1;
            *previous_end = request.responded;
        }
    }
    let mut recording = Recording::default();
    for ((life, program, is_pods), mut steps) in chains {
        for step in &mut steps {
            step.gaps.0.sort();
            step.lifetimes.0.sort();
        }
        recording[life].push(Chain { program: program.to_owned(), is_pods, steps });
    }
    recording
}

/// Returns the URI with placeholders, and the lifetime of a watch.
fn template(request: &Request, node: usize) -> (String, Option<Duration>) {
    let mut uri = request.uri.replace(&node_name(node), NODE);
    let mut lifetime = None;
    if request.verb != "watch" {
        return (uri, lifetime);
    }
    for part in request.uri.split(['?', '&']) {
        match part.split_once('=') {
            Some((name @ "resourceVersion", _)) => {
                uri = uri.replace(part, &format!("{name}={VERSION}"));
            }
            Some((name @ "timeoutSeconds", seconds)) => {
                uri = uri.replace(part, &format!("{name}={SECONDS}"));
                lifetime = seconds.parse().ok().map(Duration::from_secs);
            }
            _ => {}
        }
    }
    (uri, lifetime)
}
