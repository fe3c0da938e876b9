//! Netlink: encodes messages and attributes, and exchanges them with the kernel.

pub mod attribute;
pub mod socket;
