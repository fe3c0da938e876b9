//! Finds the pods without redirect rules.

pub mod audit;
pub mod readiness;
pub mod watch;
