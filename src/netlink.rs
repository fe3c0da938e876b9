//! Encodes netlink messages, and exchanges them with the kernel.

pub mod attribute;
pub mod socket;
