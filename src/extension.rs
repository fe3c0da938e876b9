//! `linkerd cni`, the command for administrators: an extension of Linkerd's CLI. It runs on the
//! administrator's machine and reaches the cluster through `kubectl`.

pub mod agents;
pub mod bypass;
mod cached_lookup;
pub mod checks;
pub mod cluster_node;
pub mod examined_pod;
pub mod explain;
pub mod facts;
#[cfg(test)]
pub mod fake;
pub mod kubectl;
mod node_programs;
pub mod objects;
pub mod parallel;
pub mod release;
mod repair_events;
pub mod report;
pub mod requests;
mod rules_now;
