//! The CNI protocol: what a runtime sends, and what it gets back.
//!
//! Everything that holds for any plugin is here, in the order and with the codes and
//! messages of the reference implementation (`containernetworking/cni` `pkg/skel`,
//! SPEC.md 1.1.0), so that runtimes and their users see what they know. What
//! linkerd-cni does is in [`crate::plugin`].

pub mod args;
pub mod error;
pub mod object;
pub mod output;
pub mod request;
pub mod result;
pub mod version;

pub use error::Error;
pub use request::{Command, Request};
