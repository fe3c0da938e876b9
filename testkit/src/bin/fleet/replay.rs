//! Simulated nodes: threads of this process send the requests that were recorded. What follows a
//! failed request is not recorded: the waits are those of the product's [`Schedule`] and
//! [`Backoff`].

use std::io::{self, Read as _};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use linkerd2_cni::agent::api_thread::{Schedule, TokenCheckResult};
use linkerd2_cni::backoff::{Backoff, jitter};
use linkerd2_cni::kube::kubeconfig::ApiAccess;
use linkerd2_cni::kube::watch_events::{self, WatchEvent};
use linkerd2_cni::kube::{
    self, Client, Deadlines, RESPONSE_TIMEOUT, Retry, SystemResolver, pod_watch,
};
use serde_json::Value;

use crate::control_plane::ControlPlane;
use crate::node::{Nodes, agent_token};
use crate::objects::in_parallel;
use crate::recording::{Chain, Recording, Step};

const STACK: usize = 256 << 10;
// Copies of private constants of the product: src/agent/api_thread/worker.rs,
// src/kube/pod_watch.rs.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
const LONGEST_IDLE: Duration = Duration::from_secs(10);
const STEADY: Duration = Duration::from_secs(60);
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(10);

pub struct Replay {
    shared: Arc<Shared>,
    /// For each node, a flag for each start of its programs: whether they were stopped since.
    lives: Vec<Vec<Arc<AtomicBool>>>,
}

struct Shared {
    recording: Recording,
    access: ApiAccess,
    tokens: Vec<[OnceLock<String>; 2]>,
}

struct Sender<'a> {
    shared: &'a Shared,
    node: usize,
    chain: &'a Chain,
    stopped: &'a AtomicBool,
}

impl Replay {
    pub fn prepare(
        control_plane: &ControlPlane,
        recording: Recording,
        nodes: usize,
    ) -> anyhow::Result<Replay> {
        let shared = Shared {
            recording,
            access: control_plane.access.clone(),
            tokens: vec![Default::default(); nodes],
        };
        in_parallel(nodes, |node| {
            let _ = shared.tokens[node][0].set(agent_token(&control_plane.admin, node)?);
            Ok(())
        })?;
        Ok(Replay { shared: Arc::new(shared), lives: vec![Vec::new(); nodes] })
    }
}

impl Nodes for Replay {
    fn start(&mut self, nodes: Range<usize>) -> anyhow::Result<()> {
        for node in nodes {
            let life = self.lives[node].len();
            let stopped = Arc::<AtomicBool>::default();
            self.lives[node].push(Arc::clone(&stopped));
            for index in 0..self.shared.recording[life].len() {
                let shared = Arc::clone(&self.shared);
                let stopped = Arc::clone(&stopped);
                thread::Builder::new().stack_size(STACK).spawn(move || {
                    let chain = &shared.recording[life][index];
                    Sender { shared: &shared, node, chain, stopped: &stopped }.run()
                })?;
            }
        }
        Ok(())
    }

    /// A thread with a watch notices that it is stopped when a bookmark arrives, at most a minute
    /// later.
    fn stop_replaced(&mut self, nodes: Range<usize>) -> anyhow::Result<()> {
        for lives in &self.lives[nodes] {
            stop(&lives[..lives.len() - 1]);
        }
        Ok(())
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        for lives in &self.lives {
            stop(lives);
        }
    }
}

fn stop(lives: &[Arc<AtomicBool>]) {
    for stopped in lives {
        stopped.store(true, Ordering::Relaxed);
    }
}

impl Sender<'_> {
    fn run(&self) {
        let result = if self.chain.is_pods { self.watch_pods() } else { self.send_all() };
        if let Err(error) = result {
            eprintln!("fleet: node {}: {}: {error:#}", self.node, self.chain.program);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn client(&self, step: &Step, deadlines: Deadlines) -> anyhow::Result<Client> {
        let token = &self.shared.tokens[self.node][usize::from(step.request.is_plugin)];
        let token = Some(token.get().context("no token was requested")?.clone());
        let access = ApiAccess { token, ..self.shared.access.clone() };
        Ok(Client::new::<SystemResolver>(&access, &self.chain.program, deadlines)?)
    }

    /// Sends the requests that do not list or watch pods. The last one is periodic if it was
    /// recorded twice in a row.
    fn send_all(&self) -> anyhow::Result<()> {
        let deadlines =
            Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::per_phase(PHASE_TIMEOUT) };
        let steps = &self.chain.steps;
        let is_periodic = matches!(&steps[..], [.., one, other] if one.uri == other.uri);
        // The client with the agent's token, and the client with the plugin's token.
        let mut clients: [Option<Client>; 2] = [None, None];
        let mut index = 0;
        while let Some(step) = steps.get(index)
            && !self.is_stopped()
        {
            let gap = step.gaps.draw();
            if gap > LONGEST_IDLE {
                clients = [None, None];
            }
            let mut schedule = Schedule::new(Instant::now(), None);
            thread::sleep(gap);
            while !self.is_stopped() {
                let client = &mut clients[usize::from(step.request.is_plugin)];
                let client = match client {
                    Some(client) => client,
                    None => client.insert(self.client(step, deadlines)?),
                };
                let Err(error) = self.send(client, step) else { break };
                let result = match error.code() {
                    Some(401 | 403) => TokenCheckResult::Rejected,
                    _ => TokenCheckResult::Unknown,
                };
                schedule.schedule_next_check(Instant::now(), result, requested_wait(&error));
                thread::sleep(schedule.next_due() - Instant::now());
            }
            let is_last = index + 1 == steps.len();
            if !(is_last && is_periodic) {
                index += 1;
            }
        }
        Ok(())
    }

    fn send(&self, client: &Client, step: &Step) -> Result<(), kube::Error> {
        let uri = step.uri(self.node, "", Duration::ZERO);
        let response: Value = match &*step.request.verb {
            "create" => client.post_and_decode(&uri, &step.request.body)?,
            _ => client.get(&uri)?,
        };
        if let Some(token) = response["status"]["token"].as_str() {
            let _ = self.shared.tokens[self.node][1].set(token.to_owned());
        }
        Ok(())
    }

    /// Lists and watches pods as `pod_watch::run` does, but only reads the version of the list.
    fn watch_pods(&self) -> anyhow::Result<()> {
        let (Some(list), Some(watch)) = (self.chain.steps.first(), self.chain.steps.get(1)) else {
            return Ok(());
        };
        thread::sleep(list.gaps.draw());
        let mut backoff = Backoff::spread(pod_watch::RETRIES);
        let mut version = String::new();
        // The first watch ends as if it had begun earlier, so that the watches of a fleet end at
        // all times.
        let mut lifetime = jitter(watch.lifetimes.draw()).max(Duration::from_secs(1));
        while !self.is_stopped() {
            // Each request has a connection of its own.
            let client = self.client(list, pod_watch::DEADLINES)?;
            let begin = Instant::now();
            let is_list = version.is_empty();
            let step = if is_list { list } else { watch };
            let uri = step.uri(self.node, &version, lifetime);
            let mut result = if is_list {
                read_list(&client, &uri, &mut version)
            } else {
                self.follow(&client, &uri, &mut version)
            };
            if !is_list {
                if begin.elapsed() >= STEADY {
                    backoff.reset();
                }
                if begin.elapsed() + EARLY_END_TOLERANCE < lifetime {
                    result = result.and(Err(Duration::ZERO));
                }
                lifetime = watch.lifetimes.draw();
            }
            if let Err(wait) = result
                && !self.is_stopped()
            {
                thread::sleep(backoff.next_delay().max(wait + jitter(wait / 2)));
            }
        }
        Ok(())
    }

    /// Follows a watch. Sets the version from which the next watch continues, or clears it if the
    /// next request has to be a list. The error is the shortest wait before that request.
    fn follow(&self, client: &Client, uri: &str, version: &mut String) -> Result<(), Duration> {
        let response = client.watch(uri).map_err(|error| {
            if error.code() == Some(410) {
                version.clear();
            }
            requested_wait(&error)
        })?;
        for event in watch_events::parse_events(response) {
            if self.is_stopped() {
                break;
            }
            match event {
                Ok(WatchEvent::Bookmark(object)) => *version = object.metadata.resource_version,
                Ok(WatchEvent::Error(_)) => {
                    version.clear();
                    return Err(Duration::ZERO);
                }
                Ok(_) => {}
                Err(_) => return Err(Duration::ZERO),
            }
        }
        Ok(())
    }
}

/// Returns the time that the API server asks to wait, or that the agent waits after a response that
/// was late.
fn requested_wait(error: &kube::Error) -> Duration {
    if let Retry::After(wait) = error.retry() {
        return wait;
    }
    if error.is_response_timeout() { TIMEOUT_WAIT } else { Duration::ZERO }
}

/// Reads a list, and sets its version. The error is the shortest wait before the next request.
fn read_list(client: &Client, uri: &str, version: &mut String) -> Result<(), Duration> {
    let mut list = client.read_list(uri).map_err(|error| requested_wait(&error))?;
    let mut start = String::new();
    list.by_ref().take(256).read_to_string(&mut start).map_err(|_| Duration::ZERO)?;
    io::copy(&mut list, &mut io::sink()).map_err(|_| Duration::ZERO)?;
    let Some((_, rest)) = start.split_once("\"resourceVersion\":\"") else {
        return Err(Duration::ZERO);
    };
    *version = rest.split('"').next().unwrap_or_default().to_owned();
    Ok(())
}
