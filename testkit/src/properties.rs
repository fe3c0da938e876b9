//! What the property tests and the fuzz targets share: decisions about random pods, and models of the kernel's tables.

pub mod decision;
pub mod iptables;
pub mod packet;
pub mod runtime;
