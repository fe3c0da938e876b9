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
fn a_figure_that_is_6_percent_worse_fails_and_4_percent_passes() {
    for (figure, name) in [
        ("instructions", "instructions"),
        ("allocations", "allocations"),
        ("allocated_bytes", "allocated bytes"),
    ] {
        let before = json_figures()["rows"][1][figure].as_u64().unwrap();
        let worse = run_with(figure, &json!(before * 106 / 100));
        assert!(!worse.holds(), "{figure}");
        let after = before * 106 / 100;
        assert_eq!(worse.worse, [format!("{ADD}: {name}: {before} -> {after} (+6.0 %)")]);
        assert!(worse.text().contains("scripts/benchmarks --counts"), "{}", worse.text());
        assert!(run_with(figure, &json!(before * 105 / 100)).holds(), "{figure}: 5 %");
        assert!(run_with(figure, &json!(before * 104 / 100)).holds(), "{figure}: 4 %");
        assert!(!run_with(figure, &json!(before * 105 / 100 + 1)).holds(), "{figure}: over 5 %");
    }
}

#[test]
fn one_more_request_or_process_fails() {
    assert!(!run_with("requests", &json!(3)).holds());
    let from_none = run_with("processes", &json!(1));
    assert!(!from_none.holds());
    assert_eq!(from_none.worse, [format!("{ADD}: processes: 0 -> 1 (was 0)")]);
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
fn a_better_figure_passes_with_a_hint() {
    let better = run_with("instructions", &json!(900_000));
    assert!(better.holds());
    assert_eq!(better.better, [format!("{ADD}: instructions: 1000000 -> 900000 (-10.0 %)")]);
    assert!(better.text().contains("scripts/benchmarks --counts"), "{}", better.text());
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
fn the_committed_file_has_every_counted_figure() {
    let text = fs::read(repository().join("docs/maintainers/benchmarks.json")).unwrap();
    let committed: Figures = serde_json::from_slice(&text).unwrap();
    let itself = compare(&committed, &committed);
    assert!(itself.holds(), "{}", itself.text());
    assert!(itself.compared > 70, "{} figures", itself.compared);
}
