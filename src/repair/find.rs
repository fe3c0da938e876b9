//! Finds pods whose validators failed, and reads the rules in the network namespaces of pods.

pub mod inspect;
pub mod netns_lookup;
pub mod plugin_config;
pub mod stranded;
pub mod watch;
