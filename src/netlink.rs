//! Netlink: encodes messages and attributes, and exchanges them with the kernel.

pub mod ack;
pub mod attribute;
pub mod socket;
