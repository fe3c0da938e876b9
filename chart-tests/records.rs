//! Records: text files with a row of input a line, each followed by its outcome in indented lines,
//! and with comments. `INSTA_UPDATE=always` writes the outcomes anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testkit::repository;

use crate::helm::{chart, files, read, values, yaml};

fn path(name: &str) -> PathBuf {
    repository().join("chart-tests/records").join(name).with_extension("txt")
}

pub fn assert_record(name: &str, outcome: impl Fn(&str) -> String) {
    let recorded = read(path(name));
    let mut found = String::new();
    for line in recorded.lines().filter(|line| !line.starts_with("  ")) {
        found += &format!("{line}\n");
        if !line.is_empty() && !line.starts_with('#') {
            found.extend(outcome(line).lines().map(|line| format!("  {line}\n")));
        }
    }
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(path(name), found).unwrap();
        return;
    }
    for (found, recorded) in found.lines().zip(recorded.lines()) {
        assert_eq!(found, recorded, "{name}: run INSTA_UPDATE=always cargo test --test chart");
    }
    assert_eq!(found.len(), recorded.len(), "{name}");
}

pub fn of_values() -> Vec<String> {
    let names = files(&repository().join("chart-tests/records")).into_iter();
    let names = names.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned());
    names.filter(|name| !["invalid", "install_cni"].contains(&&**name)).collect()
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

/// A value that no template reads has no such row.
#[test]
fn every_value_has_a_record_of_its_own_effect() {
    let mut effects = Vec::new();
    for name in of_values() {
        let text = read(path(&name));
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for pair in lines.windows(2).filter(|pair| !pair[0].starts_with(' ')) {
            let mut set = BTreeSet::new();
            leaves("", &values(pair[0].split(" | ").last().unwrap()), &mut set);
            if pair[1].starts_with("  ") && pair[1] != "  nothing" {
                effects.push(set);
            }
        }
    }
    let mut all = BTreeSet::new();
    leaves("", &yaml(&read(chart().join("values.yaml"))), &mut all);
    let is_shown = |path: &String| {
        let is_inside = |leaf: &String| format!("{leaf}.").starts_with(&format!("{path}."));
        effects.iter().any(|set| set.iter().all(is_inside))
    };
    let missing: Vec<_> = all.iter().filter(|path| !is_shown(path)).collect();
    assert!(missing.is_empty(), "no record shows the effect of {missing:#?}");
}
