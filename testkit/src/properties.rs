//! Models with which the property tests compare the product's rules and decisions.

pub mod decision;
pub mod difference;
pub mod evaluator;
pub mod fuzzed;
pub mod iptables;
pub mod packet;
pub mod runtime;
