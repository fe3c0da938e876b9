//! The chart on a real Kubernetes whose only node is where the tests run, as `scripts/test` creates
//! it.
//!
//! A test that uses the node holds [`Node::exclusive`], so tests may run on any number of threads
//! and in any order.

#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(clippy::print_stdout, reason = "shows what was measured, and where a test's time goes")]

mod admission_policy;
mod agent_replaced;
mod annotated_pods;
mod catalogue;
mod chart;
mod documented;
mod extension;
mod migration;
mod outage;
mod pod_copy;
mod quickstart;
mod release;
mod repair;
mod rollout;
mod runtime_proof;
mod scene;
mod service_accounts;
mod sigterm;
mod take_ownership;
mod uninstall;
mod upstream_agent;
mod verdicts;

use testkit::cluster::{
    active, agent, api, burst, connections, containers, events, helm, kubectl, node, pods,
    restore_time, upstream, watcher,
};
use testkit::{cni, documented as commands, fault_page, until};
