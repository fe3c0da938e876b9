//! Differences between upstream's chart and this one, in values, objects and plugin entry.
//!
//! Upstream's chart is no part of this repository. `chart-tests/values/upstream.yaml`,
//! `testkit/upstream-chart` and `testkit/src/upstream_entry.json` stand in for it.
//! `scripts/maintainers/compare-upstream` runs the ignored tests, which compare this stand-in with
//! the real chart, and what upstream's programs read with `upstream_programs.yaml`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tempfile::TempDir;
use testkit::cluster::upstream::{Program, write_chart};
use testkit::repository;

use crate::changes::named_items;
use crate::helm::{Render, chart, read, values, yaml};

/// Labels that many charts have, and that are on each object of this chart.
const STANDARD_LABELS: [&str; 2] = ["app.kubernetes.io/", "helm.sh/"];

fn stand_in() -> TempDir {
    let directory = TempDir::new().unwrap();
    write_chart(directory.path(), Program::OurAgent);
    directory
}

/// The default values of upstream's chart.
fn upstream_values() -> Value {
    let mut values = yaml(&read(repository().join("chart-tests/values/upstream.yaml")));
    // Helm adds this value for a subchart.
    values.as_object_mut().unwrap().remove("partials");
    values
}

/// Returns the objects of a chart by kind and name, and lists of items with names as maps.
/// Standard labels are moved from the objects into one list.
fn objects(chart: &Path, values: &Value) -> Value {
    let mut all = Map::new();
    let mut standard_labels = BTreeSet::new();
    let objects = Render::of(chart).values(values).objects();
    let config = objects.plugin();
    for mut object in objects.0 {
        for metadata in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(Value::Object(labels)) = object.pointer_mut(metadata) {
                let is_standard =
                    |key: &str| STANDARD_LABELS.iter().any(|prefix| key.starts_with(prefix));
                standard_labels.extend(labels.keys().filter(|key| is_standard(key)).cloned());
                labels.retain(|key, _| !is_standard(key));
            }
        }
        if let Some(text) = object.pointer_mut("/data/cni_network_config") {
            *text = config.clone();
        }
        let name = object["metadata"]["name"].as_str().unwrap();
        let place = format!("{} {name}", object["kind"].as_str().unwrap());
        all.insert(place, named_items(without_nulls(object)));
    }
    let labels: Map<_, _> = standard_labels.into_iter().map(|key| (key, true.into())).collect();
    all.insert("standard labels".into(), labels.into());
    all.into()
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(key, value)| (key, without_nulls(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// Notes each place at which `here` differs from `upstream`.
fn compare(place: &str, upstream: &Value, here: &Value, into: &mut Vec<String>) {
    match (upstream, here) {
        _ if upstream == here => {}
        (Value::Object(a), Value::Object(b)) if !a.is_empty() && !b.is_empty() => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let [a, b] = [a, b].map(|fields| fields.get(key).unwrap_or(&Value::Null));
                compare(&format!("{place}/{key}"), a, b, into);
            }
        }
        (Value::Null, _) => into.push(format!("{place} is added")),
        (_, Value::Null) => into.push(format!("{place} is missing")),
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => {
            into.push(format!("{place} differs"));
        }
        _ => into.push(format!("{place}: {upstream}, here {here}")),
    }
}

fn differences(upstream: &Value, here: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    compare("", upstream, here, &mut differences);
    differences
}

/// Keeps the values that upstream's chart has, too.
fn shared_values(own: &Value, upstream: &Value) -> Value {
    let (Value::Object(own), Value::Object(upstream)) = (own, upstream) else {
        return own.clone();
    };
    if upstream.is_empty() {
        return own.clone().into();
    }
    let mut shared = Map::new();
    for (key, upstream) in upstream {
        if let Some(own) = own.get(key) {
            shared.insert(key.clone(), shared_values(own, upstream));
        }
    }
    shared.into()
}

/// Adds values with which both charts have the same containers and name the same image.
fn with_same_containers(row: &str) -> Value {
    let mut with = values(row);
    with["image"]["version"] = concat!("v", env!("CARGO_PKG_VERSION")).into();
    if with["repairController"]["enabled"].is_null() {
        with["repairController"]["enabled"] = true.into();
    }
    with
}

/// The sections of a table: a line without indentation, and the indented lines that follow.
fn sections(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            Some(line) => sections.last_mut().expect("a section").1.push(line),
            None => sections.push((line, Vec::new())),
        }
    }
    sections
}

#[test]
fn each_difference_to_upstreams_chart_is_recorded_and_on_a_page() {
    let stand_in = stand_in();
    let with = with_same_containers("");
    let [upstream, own] = [stand_in.path(), &chart()].map(|chart| objects(chart, &with));
    let mut found = differences(&upstream, &own);
    let upstream = upstream_values();
    let own = shared_values(&yaml(&read(chart().join("values.yaml"))), &upstream);
    compare("/values", &upstream, &own, &mut found);

    let mut recorded = BTreeSet::new();
    for (source, lines) in sections(include_str!("upstream_differences.txt")) {
        let (page, text) = source.split_once(": ").unwrap();
        assert!(read(repository().join(page)).contains(text), "{page} lacks {text:?}");
        for line in lines {
            assert!(recorded.insert(line.to_owned()), "twice: {line}");
        }
    }
    let found: BTreeSet<String> = found.into_iter().collect();
    let new: Vec<_> = found.difference(&recorded).collect();
    assert!(new.is_empty(), "missing in upstream_differences.txt, and on a page: {new:#?}");
    let gone: Vec<_> = recorded.difference(&found).collect();
    assert!(gone.is_empty(), "remove from upstream_differences.txt: {gone:#?}");
}

/// The directory that `scripts/maintainers/compare-upstream` names in this variable.
fn checkout(variable: &str) -> PathBuf {
    let directory = std::env::var_os(variable);
    directory.expect("run scripts/maintainers/compare-upstream, which sets it").into()
}

fn upstream_chart() -> PathBuf {
    checkout("UPSTREAM_CHART")
}

#[test]
#[ignore = "needs upstream's chart: scripts/maintainers/compare-upstream"]
fn the_stand_in_has_the_values_and_objects_of_upstreams_chart() {
    let upstream = upstream_chart();
    let stand_in = stand_in();
    let mut found = Vec::new();
    let real = yaml(&read(upstream.join("values.yaml")));
    compare("/values", &real, &upstream_values(), &mut found);
    for row in ["", "repairController: {enabled: true}"] {
        let [real, here] = [&*upstream, stand_in.path()].map(|chart| objects(chart, &values(row)));
        compare(row, &real, &here, &mut found);
    }
    assert!(found.is_empty(), "upstream's chart is not the one that the tests know: {found:#?}");
}

/// A row is a set of values that upstream's chart knows. Its lines are the differences that the
/// charts do not have with their defaults.
#[test]
#[ignore = "needs upstream's chart: scripts/maintainers/compare-upstream"]
fn the_values_of_upstreams_chart_have_the_same_effects_except_the_recorded_ones() {
    let upstream = upstream_chart();
    let differences_with = |row: &str| {
        let with = with_same_containers(row);
        let [real, own] = [upstream.clone(), chart()].map(|chart| objects(&chart, &with));
        differences(&real, &own)
    };
    let defaults = differences_with("");
    for (row, recorded) in sections(include_str!("upstream_values.txt")) {
        let mut found = differences_with(row);
        found.retain(|line| !defaults.contains(line));
        assert_eq!(found, recorded, "{row}");
    }
}

/// What follows `before` in a text of Go, up to the next quotation mark or comma.
fn texts_after<'a>(source: &'a str, before: &'a str) -> BTreeSet<&'a str> {
    let texts = source.split(before).skip(1).map(|rest| rest.split(['"', ',']).next().unwrap());
    texts.filter(|text| !text.is_empty() && *text != "-").collect()
}

#[test]
#[ignore = "needs upstream's programs: scripts/maintainers/compare-upstream"]
fn upstreams_programs_read_what_the_tests_know() {
    let programs = checkout("UPSTREAM_PROGRAMS");
    let known = yaml(include_str!("upstream_programs.yaml"));
    for (place, list) in known.as_object().unwrap() {
        let (file, before) = place.split_once(' ').unwrap();
        let source = read(programs.join(file));
        let known: BTreeSet<&str> =
            list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        assert_eq!(texts_after(&source, before), known, "{place}");
    }
}
