//! The node agent.

pub mod conflist;
pub mod files;
pub mod watch;
