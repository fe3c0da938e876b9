//! Netlink: messages, attributes and the socket that carries them to the kernel.

pub mod attribute;
pub mod socket;
