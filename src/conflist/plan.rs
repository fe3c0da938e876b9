//! Plans which network configs to write, and how. Pure.
//!
//! [`chain()`] decides which files get the plugin entry, [`called`] which file the runtime loads.

mod active;
mod chain;
mod conf_conversion;
mod multus;
mod own_config;
mod steps;
#[cfg(test)]
mod tests;
mod unchain;

pub use active::{called, chained, installed};
pub use chain::chain;
pub use steps::{Plan, Step};
pub use unchain::unchain;
