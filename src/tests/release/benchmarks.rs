//! The step `bench` of `scripts/test`: which figures it rejects, and that it can compare all committed ones.

use std::fs;

use serde_json::{Value, json};
use testkit::benchmarks::{Comparison, Figures, Unusable, compare};

use crate::repository;

const ADD: &str = "meshed ADD, auto";

fn json_figures() -> Value {
    json!({
        "architecture": "x86_64",
        "rows": [
            {"name": "portmap ADD", "requests": 0, "processes": 0, "instructions": null, "allocations": null,
                "allocated_bytes": null},
            {"name": ADD, "requests": 2, "processes": 0, "instructions": 1_000_000, "allocations": 1000,
                "allocated_bytes": 50_000},
        ],
        "sizes": [{"name": "portmap", "bytes": 10}, {"name": "image", "bytes": 8_000_000}],
        "unusable": [],
    })
}

fn figures(json: &Value) -> Figures {
    serde_json::from_value(json.clone()).unwrap()
}

/// Compares a run in which one figure of the ADD differs.
fn run_with(figure: &str, value: &Value) -> Comparison {
    let mut run = json_figures();
    run["rows"][1][figure] = value.clone();
    compare(&figures(&json_figures()), &figures(&run))
}

#[test]
fn a_counted_figure_may_be_5_percent_worse_and_a_request_or_process_not_at_all() {
    for (figure, name, after, change) in [
        ("instructions", "instructions", 1_060_000, "1000000 -> 1060000 (+6.0 %)"),
        ("allocations", "allocations", 1060, "1000 -> 1060 (+6.0 %)"),
        ("allocated_bytes", "allocated bytes", 53_000, "50000 -> 53000 (+6.0 %)"),
        ("requests", "requests", 3, "2 -> 3 (+50.0 %)"),
        ("processes", "processes", 1, "0 -> 1 (was 0)"),
    ] {
        let worse = run_with(figure, &json!(after));
        assert!(!worse.holds(), "{figure}");
        assert_eq!(worse.worse, [format!("{ADD}: {name}: {change}")]);
        assert!(worse.text().contains("scripts/benchmarks --counts"), "{}", worse.text());
    }
    assert!(run_with("instructions", &json!(1_050_000)).holds());
    assert!(!run_with("instructions", &json!(1_050_001)).holds());
    let better = run_with("instructions", &json!(900_000));
    assert!(better.holds());
    assert_eq!(better.better, [format!("{ADD}: instructions: 1000000 -> 900000 (-10.0 %)")]);
    assert!(better.text().contains("scripts/benchmarks --counts"), "{}", better.text());
}

#[test]
fn a_larger_image_fails_and_a_larger_portmap_does_not() {
    let mut run = json_figures();
    run["sizes"][0]["bytes"] = json!(1000);
    assert!(compare(&figures(&json_figures()), &figures(&run)).holds());
    run["sizes"][1]["bytes"] = json!(8_480_000);
    let larger = compare(&figures(&json_figures()), &figures(&run));
    assert_eq!(larger.worse, ["image: bytes: 8000000 -> 8480000 (+6.0 %)"]);
}

#[test]
fn a_figure_that_was_not_measured_fails() {
    let missing = run_with("allocations", &Value::Null);
    assert!(!missing.holds());
    assert_eq!(missing.missing, [format!("{ADD}: allocations: missing in this run")]);
    let mut run = json_figures();
    run["rows"].as_array_mut().unwrap().pop();
    assert_eq!(compare(&figures(&json_figures()), &figures(&run)).missing.len(), 5);
    let new = compare(&figures(&run), &figures(&json_figures()));
    assert_eq!(new.missing.len(), 5, "the file lacks a row: {new:?}");
    assert!(!new.holds());
    run["rows"] = json!([]);
    run["sizes"] = json!([]);
    assert!(!compare(&figures(&run), &figures(&run)).holds(), "nothing was compared");
}

#[test]
fn a_row_of_a_backend_that_the_machine_lacks_is_skipped_and_named() {
    let mut run = figures(&json_figures());
    run.rows.pop();
    run.unusable.push(Unusable { name: ADD.to_owned(), reason: "no iptables-legacy".to_owned() });
    let skipped = compare(&figures(&json_figures()), &run);
    assert!(skipped.holds(), "{skipped:?}");
    assert_eq!(skipped.skipped, [format!("{ADD}: no iptables-legacy")]);
    assert!(skipped.text().contains("no iptables-legacy"));
}

#[test]
fn another_architecture_compares_neither_instructions_nor_sizes() {
    let mut run = json_figures();
    run["architecture"] = json!("aarch64");
    run["rows"][1]["instructions"] = json!(2_000_000);
    run["sizes"][1]["bytes"] = json!(9_000_000);
    let other = compare(&figures(&json_figures()), &figures(&run));
    assert!(other.holds(), "{other:?}");
    assert_eq!((other.compared, other.skipped.len()), (4, 1));
    run["rows"][1]["allocations"] = json!(2000);
    assert!(!compare(&figures(&json_figures()), &figures(&run)).holds());
}

#[test]
fn benchmarks_json_has_every_counted_figure() {
    let text = fs::read(repository().join("docs/maintainers/benchmarks.json")).unwrap();
    let committed: Figures = serde_json::from_slice(&text).unwrap();
    let itself = compare(&committed, &committed);
    assert!(itself.holds(), "{}", itself.text());
    assert!(itself.compared > 70, "{} figures", itself.compared);
}
