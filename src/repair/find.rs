//! Finds pods without redirect rules: by their failed validators, or by an audit of the rules.

pub mod audit;
pub mod inspect;
pub mod netns_lookup;
pub mod plugin_config;
pub mod stranded;
pub mod suspension;
pub mod watch;
