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
    pub uri: String,
    pub gaps: Distribution,
    pub lifetimes: Distribution,
}

impl Step {
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
        let last = self.0.len().saturating_sub(1);
        let position = jitter(Duration::from_secs(last as u64)).as_secs_f64();
        let [low, high] = [position.floor(), position.ceil()].map(|index| self.0[index as usize]);
        low + (high - low).mul_f64(position.fract())
    }
}

pub fn record<'a>(
    requests: impl Iterator<Item = &'a Request>,
    started: &[Vec<SystemTime>],
) -> Recording {
    let mut chains: BTreeMap<(usize, &str, bool), Vec<Step>> = BTreeMap::new();
    // Next step of each node's chain, and since when it is awaited.
    let mut positions = HashMap::new();
    for request in requests.filter(|request| request.status < 400) {
        let Some(node) = request.node else { continue };
        let is_before = |time: &SystemTime| *time <= request.received;
        let Some(life) = started[node].iter().rposition(is_before) else { continue };
        let chain = (life, &*request.program, request.uri.starts_with("/api/v1/pods?"));
        let (index, since) = positions.entry((node, chain)).or_insert((0, started[node][life]));
        let (uri, lifetime) = template(request, node);
        let steps = chains.entry(chain).or_default();
        // From its second time on, a periodic request is one step.
        if *index > 1 && steps[*index - 2..*index].iter().all(|step| step.uri == uri) {
            *index -= 1;
        }
        if steps.len() == *index {
            let (request, [gaps, lifetimes]) = (request.clone(), Default::default());
            steps.push(Step { request, uri: uri.clone(), gaps, lifetimes });
        }
        let step = &mut steps[*index];
        if step.uri == uri {
            step.gaps.0.push(request.received.duration_since(*since).unwrap_or_default());
            step.lifetimes.0.extend(lifetime);
            (*index, *since) = (*index + 1, request.responded);
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

fn template(request: &Request, node: usize) -> (String, Option<Duration>) {
    let mut uri = request.uri.replace(&node_name(node), NODE);
    let mut lifetime = None;
    for part in request.uri.split(['?', '&']).filter(|_| request.verb == "watch") {
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
