//! The CNI protocol: parses the runtime's request and formats the response.
//!
//! This module implements what every CNI plugin needs; [`crate::plugin`] implements linkerd-cni.
//! The protocol is that of CNI spec 1.1. The order of checks, the error codes and the messages
//! match the reference implementation (`containernetworking/cni`, `pkg/skel`), which users know.

pub mod args;
pub mod error;
pub mod object;
pub mod request;
pub mod result;
pub mod version;

pub use error::Error;
pub use request::Request;
pub use version::Command;
