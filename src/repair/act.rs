//! Repairs the pods that were found, one at a time.

pub mod agent_ready;
mod delete;
pub mod verdict;
pub mod worker;
