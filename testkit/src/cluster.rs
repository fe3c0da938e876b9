//! The cluster of `KUBECONFIG`, which `scripts/cluster` made: used by the cluster tests, the matrix
//! and the soak.

pub mod active;
pub mod agent;
pub mod api;
pub mod burst;
pub mod connections;
pub mod containers;
pub mod events;
pub mod families;
pub mod helm;
pub mod kubectl;
pub mod leftovers;
pub mod node;
pub mod observed_agents;
pub mod pods;
pub mod restore_time;
pub mod simulated_nodes;
pub mod upstream;
pub mod watcher;
