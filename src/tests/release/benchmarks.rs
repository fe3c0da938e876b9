//! The step `bench` of `scripts/test`: which figures it rejects, and that it can compare all committed ones.

use std::fs;

use serde_json::{Value, json};
use testkit::benchmarks::{Figures, compare};
use testkit::chart::yaml;

use crate::repository;

#[test]
fn a_run_that_is_worse_or_lacks_a_figure_fails_and_the_report_names_the_figure() {
    let cases = yaml(include_str!("benchmarks.yaml"));
    let figures = |changes: &Value| -> Figures {
        let mut figures = cases["committed"].clone();
        for (pointer, value) in changes.as_object().into_iter().flatten() {
            *figures.pointer_mut(pointer).unwrap() = value.clone();
        }
        serde_json::from_value(figures).unwrap()
    };
    for case in cases["runs"].as_array().unwrap() {
        let found = compare(&figures(&case["committed"]), &figures(&case["run"]));
        let lines = |key: &str| Value::from(case[key].as_array().cloned().unwrap_or_default());
        assert_eq!([json!(found.worse), json!(found.better)], [lines("worse"), lines("better")]);
        let missing = case["missing"].as_u64().unwrap_or_default();
        assert_eq!(found.missing.len() as u64, missing, "{case}");
        let compared = case["compared"].as_u64().unwrap_or(found.compared as u64);
        assert_eq!(found.compared as u64, compared, "{case}");
        assert_eq!(found.holds(), found.worse.is_empty() && missing == 0 && compared > 0, "{case}");
        assert!(found.text().contains(case["text"].as_str().unwrap_or_default()), "{case}");
    }
}

#[test]
fn benchmarks_json_has_every_counted_figure() {
    let text = fs::read(repository().join("docs/maintainers/benchmarks.json")).unwrap();
    let committed: Figures = serde_json::from_slice(&text).unwrap();
    let itself = compare(&committed, &committed);
    assert!(itself.holds(), "{}", itself.text());
    assert!(itself.compared > 70, "{} figures", itself.compared);
}
