//! A stand-in for upstream's chart, with upstream's values, objects, variables, rights and pod.

use std::fs;
use std::path::Path;

use crate::cni::upstream_entry;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The agent of this project's image, which reads the same variables as upstream's agent.
    OurAgent,
    /// A program that does nothing. The test runs a stand-in for upstream's agent outside of the
    /// pod.
    Pause,
}

pub fn write_chart(chart: &Path, program: Program) {
    let values = crate::repository().join("chart-tests/values/upstream.yaml");
    let values = fs::read_to_string(values).unwrap();
    let values = format!("{values}\npause: {}\n", program == Program::Pause);
    fs::create_dir_all(chart.join("templates")).unwrap();
    for (name, text) in [
        ("Chart.yaml", "{apiVersion: v2, name: linkerd2-cni, version: 2026.8.3}"),
        ("values.yaml", &values),
        ("entry.json", &upstream_entry().to_string()),
        ("templates/objects.yaml", include_str!("../../upstream-chart/objects.yaml")),
    ] {
        fs::write(chart.join(name), text).unwrap();
    }
}
