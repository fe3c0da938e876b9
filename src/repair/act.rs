//! Repairs pods, and reports what was done or why a pod was left unchanged.

pub mod check;
pub mod delete;
mod eviction_response;
pub mod in_place;
pub mod not_repaired;
pub mod worker;
