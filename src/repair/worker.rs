//! Deals with stranded pods, one at a time, as the mode says, and tells why in an Event.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Shared;
use super::agent_ready;
use super::connection::{self, Connection};
use super::host::Host;
use super::inspect::{self, Finding, Inspector, Reads, Target};
use super::limit::{By, HOLD, Limit};
use super::message::{Told, message};
use super::mode::Mode;
use super::rate::Rate;
use super::remove::{self, Removal};
use super::verdict::{Cause, Stranded, auditable, stranded};
use crate::kube;
use crate::kube::event::{self, Regarding, Reporter};
use crate::kube::types::Pod;

/// As upstream's; for connecting and for the answer.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// How often an agent that is not ready is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a pod is not thought of again that is only reported, or left as it is.
const TOLD: Duration = Duration::from_secs(3600);

/// The one that acts.
pub struct Worker {
    pub connection: Connection,
    pub reporter: Reporter,
    pub mode: Mode,
    pub host: Host,
    /// Where the agent of this node answers `/ready`.
    pub agent: Option<String>,
    pub rate: Rate,
    /// Pods dealt with.
    pub limit: Limit,
    /// Pods told about and left.
    pub left: Limit,
    /// Pods that a disruption budget keeps, and of which of them somebody was told.
    pub kept: Limit,
    pub told: Limit,
    pub shared: Arc<Shared>,
}

/// How often a pod may be dealt with in a mode.
pub fn limit(mode: Mode) -> Limit {
    let by = match mode {
        Mode::Delete => By::Owner,
        Mode::InPlace | Mode::Label | Mode::Report => By::Pod,
    };
    Limit::new(by, HOLD)
}

/// How often a pod that was told about, and left, is thought of again.
pub fn told() -> Limit {
    Limit::new(By::Pod, TOLD)
}

/// How often a pod that a disruption budget keeps is tried again.
pub fn kept() -> Limit {
    Limit::new(By::Pod, HOLD)
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
}

impl Error {
    fn code(&self) -> Option<u16> {
        match self {
            Error::Request(error) => error.code(),
            _ => None,
        }
    }

    fn is_timeout(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_timeout())
    }
}

enum Outcome {
    /// As the mode says; the rules that were missing, if known.
    Done(Vec<String>),
    /// There is nothing to do, because of this.
    Moot(&'static str),
    /// Dealt with a moment ago.
    Held,
    /// It must stay as it is, because of this.
    Left(String),
    /// It must stay for now: a disruption budget wants it to, in these words.
    Kept(String),
}

/// A pod to act on.
struct Case {
    pod: Stranded,
    /// Where its rules belong, if that was looked up.
    target: Option<Target>,
    /// The rules that are missing, if known.
    missing: Vec<String>,
}

impl Case {
    fn of(pod: Stranded) -> Self {
        Case {
            pod,
            target: None,
            missing: Vec::new(),
        }
    }
}

impl Worker {
    /// Works until the queue is closed.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(pod) = shared.queue.take() {
            if !self.wait_for_turn() {
                return;
            }
            self.repair(&pod);
        }
    }

    /// Waits until the node is verified and the rate allows another act; `false` if
    /// the queue is closed first.
    fn wait_for_turn(&mut self) -> bool {
        let Shared { queue, metrics, .. } = &*Arc::clone(&self.shared);
        let wait = self.rate.wait(Instant::now());
        if !wait.is_zero() {
            metrics.rate_waits.increment();
            tracing::info!("Waiting {wait:.0?} for the rate of acts to allow another");
            if queue.closed_within(wait) {
                return false;
            }
        }
        let Some(agent) = &self.agent else {
            return true;
        };
        let mut silent = false;
        while let Err(error) = agent_ready::ready(agent) {
            if !silent {
                metrics.agent_waits.increment();
                tracing::warn!("Doing nothing until the node is verified: {error}");
                silent = true;
            }
            if queue.closed_within(ASK_AGAIN) {
                return false;
            }
        }
        true
    }

    fn repair(&mut self, pod: &Stranded) {
        let shared = Arc::clone(&self.shared);
        let metrics = &shared.metrics;
        let (namespace, name) = (&pod.namespace, &pod.name);
        if !self.left.allows(pod, Instant::now()) {
            tracing::debug!(namespace, name, "Pod was told about already");
            return;
        }
        if !self.kept.allows(pod, Instant::now()) {
            shared.missed.add(Instant::now() + HOLD);
            return;
        }
        let began = Instant::now();
        match self.deal(pod) {
            Ok(Outcome::Done(missing)) => {
                self.done(pod, began);
                self.report(pod, Told::Done(self.mode, &missing));
            }
            Ok(Outcome::Moot(why)) => tracing::debug!(namespace, name, "{why}"),
            Ok(Outcome::Held) => {
                metrics.pods_held.increment();
                shared.missed.add(Instant::now() + HOLD);
                if self.limit.tell(pod) {
                    tracing::warn!(
                        namespace,
                        name,
                        "Pod is stranded again after it, or its owner's last one, was dealt with; \
                         leaving it for now: is the CNI plugin of this node working?"
                    );
                    self.report(pod, Told::Held);
                }
            }
            Ok(Outcome::Left(why)) => {
                metrics.pods_left.increment();
                self.left.done(pod, Instant::now(), SystemTime::now());
                tracing::warn!(namespace, name, "Leaving pod: {why}");
                self.report(pod, Told::Left(&why));
            }
            Ok(Outcome::Kept(why)) => {
                let now = Instant::now();
                self.kept.done(pod, now, SystemTime::now());
                // The budget may allow it in a minute, once others are there.
                shared.missed.add(now + HOLD);
                if self.told.allows(pod, now) {
                    metrics.pods_left.increment();
                    self.told.done(pod, now, SystemTime::now());
                    tracing::warn!(namespace, name, "Leaving pod for now: {why}");
                    self.report(pod, Told::Left(&why));
                }
            }
            Err(error) => {
                match self.mode {
                    Mode::Delete if error.is_timeout() => metrics.pods_delete_timeout.increment(),
                    Mode::Delete => metrics.pods_delete_errors.increment(),
                    _ => metrics.repair_errors.increment(),
                }
                shared.missed.add(Instant::now());
                let what = match self.mode {
                    Mode::Delete => "Error deleting pod",
                    _ => "Error repairing pod",
                };
                tracing::warn!(err = %error, namespace, name, "{what}");
            }
        }
    }

    /// Does what the mode says, if it is still called for.
    fn deal(&mut self, pod: &Stranded) -> Result<Outcome, Error> {
        if self.is_labelled(pod) {
            return Ok(Outcome::Moot("Pod has its label"));
        }
        let Case {
            pod,
            target,
            missing,
        } = match self.look(pod)? {
            Ok(case) => case,
            Err(outcome) => return Ok(outcome),
        };
        if !self.limit.allows(&pod, Instant::now()) {
            return Ok(Outcome::Held);
        }
        let acted = match self.act(&pod, target.as_ref()) {
            // Changed since it was judged: once more, if it still has to be.
            Err(error) if error.code() == Some(409) => match self.read_again(&pod)? {
                Some((pod, _)) if !self.is_labelled(&pod) => self.act(&pod, target.as_ref()),
                _ => return Ok(Outcome::Moot("Pod is gone or well")),
            },
            acted => acted,
        };
        // What the API server has refused is no act; what it has not answered may be one.
        let refused = match &acted {
            Ok(removal) => *removal != Removal::Deleted,
            Err(error) => error.code().is_some(),
        };
        if !refused {
            self.rate.spend(Instant::now());
        }
        match acted {
            Ok(Removal::Deleted) => Ok(Outcome::Done(missing)),
            Ok(Removal::Refused(why)) => Ok(Outcome::Kept(why)),
            Err(error) if error.code() == Some(404) => Ok(Outcome::Moot("Pod is gone")),
            Err(error) if error.code() == Some(409) => {
                self.shared.missed.add(Instant::now());
                Ok(Outcome::Moot("Pod keeps changing; later again"))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the pod again, because list, event or audit may be old by now. A deletion
    /// needs no second look: its preconditions name the version that was judged.
    fn look(&mut self, pod: &Stranded) -> Result<Result<Case, Outcome>, Error> {
        let inspects = self.mode == Mode::InPlace || pod.cause == Cause::Audit;
        if self.mode == Mode::Delete && !inspects {
            return Ok(Ok(Case::of(pod.clone())));
        }
        let Some((pod, object)) = self.read_again(pod)? else {
            return Ok(Err(Outcome::Moot("Pod is gone or well")));
        };
        if self.is_labelled(&pod) {
            return Ok(Err(Outcome::Moot("Pod has its label")));
        }
        if !inspects {
            return Ok(Ok(Case::of(pod)));
        }
        let client = self.connection.client()?;
        let finding = Inspector::new(&self.host, Reads::Newest)?.look(&client, object)?;
        Ok(match finding {
            Finding::NotOurs => Err(Outcome::Moot("Pod is none of ours")),
            Finding::Right => Err(Outcome::Moot("Pod has its rules")),
            Finding::Unreadable => Err(Outcome::Left(UNREADABLE.into())),
            Finding::Wrong(target, missing) => Ok(Case {
                pod,
                target: Some(target),
                missing,
            }),
        })
    }

    fn act(&mut self, pod: &Stranded, target: Option<&Target>) -> Result<Removal, Error> {
        match self.mode {
            Mode::Delete => return Ok(remove::remove(&self.connection.client()?, pod)?),
            Mode::Label => remove::label(&self.connection.client()?, pod)?,
            Mode::InPlace => target.map_or(Ok(()), Target::put_right)?,
            Mode::Report => {}
        }
        Ok(Removal::Deleted)
    }

    fn is_labelled(&self, pod: &Stranded) -> bool {
        self.mode == Mode::Label && pod.labelled
    }

    /// The pod as it is now, if it is still the same one and still to be dealt with.
    fn read_again(&mut self, pod: &Stranded) -> Result<Option<(Stranded, Pod)>, Error> {
        let object: Pod = match self.connection.client()?.get(&remove::path(pod)) {
            Err(error) if error.code() == Some(404) => return Ok(None),
            object => object?,
        };
        let ill = match pod.cause {
            Cause::Validator => stranded(&object).is_some(),
            Cause::Audit => auditable(&object),
        };
        let same = object.metadata.uid == pod.uid;
        Ok((same && ill).then(|| (Stranded::new(&object, pod.cause), object)))
    }

    fn done(&mut self, pod: &Stranded, began: Instant) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let metrics = &self.shared.metrics;
        let what = match self.mode {
            Mode::Delete => {
                metrics.pods_delete_latency.observe(began.elapsed());
                metrics.pods_deleted.increment();
                "Deleted pod"
            }
            Mode::InPlace => {
                metrics.pods_repaired.increment();
                "Repaired pod in place"
            }
            Mode::Label => {
                metrics.pods_labelled.increment();
                "Labelled pod"
            }
            Mode::Report => {
                metrics.pods_reported.increment();
                // Its next failure is no news.
                self.left.done(pod, began, SystemTime::now());
                "Pod is stranded"
            }
        };
        tracing::info!(namespace, name, "{what}");
        self.limit.done(pod, Instant::now(), SystemTime::now());
    }

    fn report(&mut self, pod: &Stranded, told: Told<'_>) {
        let began = Instant::now();
        let published = self.publish(pod, told);
        let metrics = &self.shared.metrics;
        match published {
            Ok(()) => metrics.events_publish_latency.observe(began.elapsed()),
            Err(error) => {
                match error.is_timeout() {
                    true => metrics.events_publish_timeouts.increment(),
                    false => metrics.events_publish_errors.increment(),
                }
                tracing::warn!(
                    err = %error,
                    namespace = pod.namespace,
                    name = pod.name,
                    "Error publishing event"
                );
            }
        }
    }

    fn publish(&mut self, pod: &Stranded, told: Told<'_>) -> Result<(), Error> {
        let regarding = Regarding {
            kind: "Pod",
            namespace: &pod.namespace,
            name: &pod.name,
            uid: &pod.uid,
        };
        let message = message(pod.cause, told);
        let client = self.connection.client()?;
        Ok(event::publish(
            &client,
            &self.reporter,
            regarding,
            &message,
        )?)
    }
}

const UNREADABLE: &str = "iptables-legacy has rules in the pod's network namespace, which cannot be read from here; \
                          delete the pod to have it made anew";
