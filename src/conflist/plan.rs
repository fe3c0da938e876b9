//! Plans which network configs to write, and how.
//!
//! [`chain()`] decides which files get the plugin entry. [`called_config`] finds the network config
//! whose plugins the runtime calls.

mod active;
mod chain;
mod conf_conversion;
mod multus;
mod standalone;
mod step;
#[cfg(test)]
mod tests;
mod unchain;

pub use active::{called_config, chained_config, installed_config, selected_configs};
pub use chain::chain;
pub use step::{Plan, Step};
pub use unchain::unchain;
