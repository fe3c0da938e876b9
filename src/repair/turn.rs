//! Decides whether it is a pod's turn to be repaired, or why the pod has to wait. Pure.
//!
//! There are two decisions. [`Turns::turn_of`] decides when the controller checks whether a pod
//! needs a repair, which may take requests and a read of the rules in the pod's netns. Most reasons
//! to wait apply to this check. The hold after a repair applies only to a pod that needs another
//! repair, so [`Turns::hold`] decides after the check.

pub mod attempts;
pub mod budget;
pub mod holds;

use std::time::{Duration, Instant, SystemTime};

use super::agent_ready::ASK_INTERVAL;
use super::find::stranded::{FoundBy, StrandedPod};
use super::settings::RepairMode;
use attempts::Attempts;
use budget::RepairBudget;
use holds::Holds;

/// Whether the controller may check a pod now, and then repair it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Now,
    /// The pod's turn has come, except that the agent has to be asked whether it is ready.
    AskAgent,
    Wait(WaitReason, Duration),
    /// The pod waits until an audit finds it again.
    UntilNextAudit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// An earlier attempt failed, or found that the pod needs no repair.
    EarlierAttempt,
    /// The repair budget of the node, or the share of the pod's namespace, is used up.
    Budget,
    /// The agent is not ready. While the plugin is not installed, each deleted pod would be
    /// replaced by another stranded pod.
    AgentNotReady,
}

impl Turn {
    /// Returns the time until the pod's turn may come.
    pub fn wait(self) -> Duration {
        match self {
            Turn::Wait(_, wait) => wait,
            Turn::Now | Turn::AskAgent | Turn::UntilNextAudit => Duration::ZERO,
        }
    }
}

/// What is known of the agent, which is asked again before each repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// The settings have no address of an agent.
    Unchecked,
    NotAsked,
    Ready {
        valid_until: Instant,
    },
    NotReady {
        valid_until: Instant,
    },
}

/// State that decides whose turn it is, together with the [`Attempts`] to repair each pod.
pub struct Turns {
    agent: Agent,
    /// Whether the last audit found so many damaged pods that the audit itself may be wrong.
    are_audit_repairs_suspended: bool,
    budget: RepairBudget,
    holds: Holds,
}

impl Turns {
    pub fn new(mode: RepairMode, repairs_per_minute: u16, has_agent: bool) -> Self {
        Turns {
            agent: if has_agent { Agent::NotAsked } else { Agent::Unchecked },
            are_audit_repairs_suspended: false,
            budget: RepairBudget::new(repairs_per_minute),
            holds: Holds::new(mode),
        }
    }

    /// Returns whether the pod may be checked now, and repaired if it needs a repair.
    pub fn turn_of(&self, pod: &StrandedPod, attempts: &Attempts, now: Instant) -> Turn {
        if pod.found.found_by == FoundBy::Audit && self.are_audit_repairs_suspended {
            return Turn::UntilNextAudit;
        }
        let after_attempt = attempts.wait(now);
        let for_budget = self.budget.wait(&pod.found.namespace, now);
        if after_attempt > for_budget {
            return Turn::Wait(WaitReason::EarlierAttempt, after_attempt);
        }
        if !for_budget.is_zero() {
            return Turn::Wait(WaitReason::Budget, for_budget);
        }
        self.turn_by_agent(now)
    }

    /// Returns the turn of a pod that waits only for the agent.
    fn turn_by_agent(&self, now: Instant) -> Turn {
        match self.agent {
            Agent::Unchecked => Turn::Now,
            Agent::Ready { valid_until } if now < valid_until => Turn::Now,
            Agent::NotReady { valid_until } if now < valid_until => {
                Turn::Wait(WaitReason::AgentNotReady, valid_until - now)
            }
            Agent::NotAsked | Agent::Ready { .. } | Agent::NotReady { .. } => Turn::AskAgent,
        }
    }

    /// Returns how long the pod, which needs a repair, is held because of an earlier repair. `None`
    /// if it is not held.
    pub fn hold(&self, pod: &StrandedPod, now: Instant) -> Option<Duration> {
        self.holds.wait(pod, now)
    }

    /// Returns the number of repairs in the namespace in the last minute. If it is the turn of
    /// several pods, the pod of the namespace with the lowest number is first.
    pub fn recent_repairs(&self, namespace: &str, now: Instant) -> usize {
        self.budget.repairs_in(namespace, now)
    }

    /// Records that a pod was taken for a check, so that the agent is asked again before the next
    /// pod.
    pub fn record_taken(&mut self) {
        if let Agent::Ready { .. } = self.agent {
            self.agent = Agent::NotAsked;
        }
    }

    /// Records whether the agent is ready. Returns whether this response begins a pause of repairs.
    pub fn record_agent(&mut self, is_ready: bool, now: Instant) -> bool {
        let was_paused = matches!(self.agent, Agent::NotReady { .. });
        let valid_until = now + ASK_INTERVAL;
        if is_ready {
            self.agent = Agent::Ready { valid_until };
            return false;
        }
        self.agent = Agent::NotReady { valid_until };
        !was_paused
    }

    /// Suspends the repairs of pods that audits found, or lets them continue.
    pub fn suspend_audit_repairs(&mut self, is_suspended: bool) {
        self.are_audit_repairs_suspended = is_suspended;
    }

    /// Counts an attempt that may have changed a pod of the namespace against the repair budget.
    pub fn spend_budget(&mut self, namespace: &str, now: Instant) {
        self.budget.spend(namespace, now);
    }

    /// Records a repair at `now`, which is `date` by the node's clock.
    pub fn record_repair(&mut self, pod: &StrandedPod, now: Instant, date: SystemTime) {
        self.holds.record(pod, now, date);
    }
}

#[cfg(test)]
mod tests;
