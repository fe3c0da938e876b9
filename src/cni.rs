//! The CNI protocol: parses the runtime's request and formats the response.
//!
//! This module has what applies to any CNI plugin; [`crate::plugin`] has what linkerd-cni does.
//! It follows CNI spec 1.1. Order of checks, error codes and messages are those of the reference
//! implementation (`containernetworking/cni`, `pkg/skel`), which runtimes and users know.

pub mod args;
pub mod error;
pub mod object;
pub mod request;
pub mod result;
pub mod version;

pub use error::Error;
pub use request::Request;
pub use version::Command;
