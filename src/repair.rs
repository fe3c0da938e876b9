//! The repair controller.

pub mod metrics;
pub mod verdict;
