//! The fault catalogue: each test causes one fault and captures what the page `docs/faults/NAME.md` quotes. Faults that
//! only a cluster can show are in `src/tests/cluster/catalogue.rs`.

mod api_server;
mod chart;
mod check;
mod fault;
mod node_files;
mod pods;
mod rules;
