//! The step `bench` of `scripts/test`: which figures it rejects, and that it can compare all
//! committed ones.

use std::fs;

use serde::Deserialize;
use serde_json::{Map, Value};
use testkit::benchmarks::{Figures, compare};
use testkit::chart::yaml;
use testkit::table;

use crate::repository;

const TABLES: &str = include_str!("benchmarks.yaml");

/// A row of `runs` in `benchmarks.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRow {
    /// Changes of the committed figures, by JSON pointer.
    #[serde(default)]
    committed: Map<String, Value>,
    /// The same for the figures of the run.
    #[serde(default)]
    run: Map<String, Value>,
    #[serde(default)]
    worse: Vec<String>,
    #[serde(default)]
    better: Vec<String>,
    #[serde(default)]
    missing: usize,
    compared: Option<usize>,
    #[serde(default)]
    text: String,
}

fn figures(changes: &Map<String, Value>) -> Figures {
    let mut figures = yaml(TABLES)["committed"].take();
    for (pointer, value) in changes {
        *figures.pointer_mut(pointer).unwrap() = value.clone();
    }
    serde_json::from_value(figures).unwrap()
}

#[test]
fn worse_or_missing_figure_fails_the_run_and_is_named() {
    for (name, row) in table::rows_of::<RunRow>(TABLES, "runs") {
        let comparison = compare(&figures(&row.committed), &figures(&row.run));
        assert_eq!(comparison.worse, row.worse, "{name}");
        assert_eq!(comparison.better, row.better, "{name}");
        assert_eq!(comparison.missing.len(), row.missing, "{name}");
        if let Some(compared) = row.compared {
            assert_eq!(comparison.compared, compared, "{name}");
        }
        let holds = row.worse.is_empty() && row.missing == 0 && comparison.compared > 0;
        assert_eq!(comparison.holds(), holds, "{name}");
        assert!(comparison.text().contains(&row.text), "{name}: {}", comparison.text());
    }
}

#[test]
fn benchmarks_json_has_every_counted_figure() {
    let text = fs::read(repository().join("docs/maintainers/benchmarks.json")).unwrap();
    let committed: Figures = serde_json::from_slice(&text).unwrap();
    let comparison = compare(&committed, &committed);
    assert!(comparison.holds(), "{}", comparison.text());
    assert!(comparison.compared > 70, "{} figures", comparison.compared);
}
