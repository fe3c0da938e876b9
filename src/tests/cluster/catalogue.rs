//! The pages of the fault catalogue that only a cluster can show. `src/tests/agent/catalogue.rs` has the others.

mod installation;
mod pods;
mod shown;
