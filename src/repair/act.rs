//! Repairs the pods that were found, one at a time.

mod agent_ready;
mod delete;
mod in_place;
mod label;
pub mod verdict;
pub mod worker;
