//! Records: text files with one input a line. The indented lines after an input are its outcome.
//! Lines with `#` are comments. `INSTA_UPDATE=always` writes the outcomes anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testkit::repository;

use crate::helm::{chart, files, read, values, yaml};

fn path(name: &str) -> PathBuf {
    repository().join("chart-tests/records").join(name).with_extension("txt")
}

/// Asserts that `outcome` returns for each input what the record has.
pub fn assert_record(name: &str, outcome: impl Fn(&str) -> String) {
    let recorded = read(path(name));
    let mut actual = String::new();
    for line in recorded.lines().filter(|line| !line.starts_with("  ")) {
        actual += &format!("{line}\n");
        let is_input = !line.is_empty() && !line.starts_with('#');
        if is_input {
            for outcome_line in outcome(line).lines() {
                actual += &format!("  {outcome_line}\n");
            }
        }
    }
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(path(name), actual).unwrap();
        return;
    }
    for (actual, recorded) in actual.lines().zip(recorded.lines()) {
        assert_eq!(actual, recorded, "{name}: run INSTA_UPDATE=always cargo test --test chart");
    }
    assert_eq!(actual.len(), recorded.len(), "{name}");
}

/// Returns the names of the records whose inputs are values of the chart.
pub fn value_records() -> Vec<String> {
    let mut names = Vec::new();
    for file in files(&repository().join("chart-tests/records")) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        if name != "invalid" && name != "install_cni" {
            names.push(name.to_owned());
        }
    }
    names
}

/// Collects the paths of all leaves, such as "a.b.c". A map without members is a leaf.
pub fn leaves(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                leaves(&path, field, into);
            }
        }
        _ => {
            into.insert(prefix.to_owned());
        }
    }
}

/// A value that no template reads cannot have such a record.
#[test]
fn every_value_has_a_record_of_its_own_effect() {
    // The leaves of the values in each input that has an effect.
    let mut inputs_with_effect = Vec::new();
    for name in value_records() {
        let text = read(path(&name));
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for pair in lines.windows(2) {
            let input = pair[0];
            let outcome = pair[1];
            let is_input = !input.starts_with(' ');
            let has_effect = outcome.starts_with("  ") && outcome != "  nothing";
            if is_input && has_effect {
                let mut input_leaves = BTreeSet::new();
                leaves("", &values(input.split(" | ").last().unwrap()), &mut input_leaves);
                inputs_with_effect.push(input_leaves);
            }
        }
    }
    let mut all_leaves = BTreeSet::new();
    leaves("", &yaml(&read(chart().join("values.yaml"))), &mut all_leaves);
    let has_record = |path: &String| {
        let is_inside = |leaf: &String| format!("{leaf}.").starts_with(&format!("{path}."));
        inputs_with_effect.iter().any(|leaves| leaves.iter().all(is_inside))
    };
    let missing: Vec<_> = all_leaves.iter().filter(|path| !has_record(path)).collect();
    assert!(missing.is_empty(), "no record shows the effect of {missing:#?}");
}
