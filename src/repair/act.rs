//! Repairs the pods that were found, one at a time.

mod agent_ready;
mod delete;
pub mod verdict;
pub mod worker;
