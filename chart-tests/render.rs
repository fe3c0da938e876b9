//! The rendered text, for each values file in `ci`.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod changes;
mod contract;
mod docs;
mod documented;
mod install_cni;
mod lifecycle;
mod monitoring;
mod notes;
mod pages;
mod platforms;
mod quickstart;
mod records;
mod schema;
mod security;
mod upstream;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use helm::{Render, ci_values, platforms, render, yaml};
use testkit::chart as helm;
use testkit::{cni, documented as commands};

#[test]
fn each_values_file_renders_the_recorded_text() {
    insta::glob!("../charts/linkerd2-cni/ci", "*-values.yaml", |values| {
        let rendered = Render::new().file(values).text().unwrap();
        insta::assert_snapshot!(rendered);
    });
}

#[test]
fn each_snapshot_has_a_values_file() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("chart-tests/snapshots");
    let prefix = "chart__each_values_file_renders_the_recorded_text@";
    let mut snapshots = BTreeSet::new();
    for path in helm::files(&directory) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(rest) = name.strip_prefix(prefix)
            && let Some(values_file) = rest.strip_suffix(".snap")
        {
            snapshots.insert(values_file.to_owned());
        }
    }
    let mut values_files = BTreeSet::new();
    for path in ci_values() {
        values_files.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    assert_eq!(snapshots, values_files);
}

/// Argo CD and `helm template` render without the cluster, and must get the same objects.
#[test]
fn no_template_reads_the_cluster_or_changes_the_values() {
    for path in helm::files(&helm::chart().join("templates")) {
        let text = helm::read(&path);
        assert!(!text.contains("lookup "), "{}", path.display());
        for function in
            ["set", "unset", "merge", "mergeOverwrite", "mustMerge", "mustMergeOverwrite"]
        {
            for values in [".Values", "$.Values"] {
                assert!(!text.contains(&format!("{function} {values}")), "{}", path.display());
            }
        }
    }
}

/// Helm 4 keeps an empty line at the end of a template, and Helm 3 removes it.
#[test]
fn helm_3_and_helm_4_render_the_same_bytes() {
    let platforms = platforms().into_iter().map(|(_, path)| path);
    for values in ci_values().into_iter().chain(platforms) {
        let helm_3_text = Render::new().helm_3().file(&values).text().unwrap();
        let helm_4_text = Render::new().file(&values).text().unwrap();
        assert!(helm_3_text.contains("kind: DaemonSet"), "{helm_3_text}");
        assert_eq!(helm_3_text, helm_4_text, "{}", values.display());
    }
}

#[test]
fn rendered_objects_have_no_null_fields() {
    let nested = yaml(include_str!("cases.yaml"))["nulls"].take();
    let ci_objects = ci_values().into_iter().map(|file| Render::new().file(&file).objects());
    for objects in ci_objects.chain([render(nested)]) {
        let text = json!(objects.0).to_string();
        for null in ["\":null", "[null", ",null"] {
            assert!(!text.contains(null), "{null} in {text}");
        }
    }
}

/// Names may look like YAML numbers, booleans (`on` in YAML 1.1, which Kubernetes reads) and nulls.
#[test]
fn name_that_looks_like_another_yaml_type_stays_a_string() {
    for name in ["123", "1e3", "0o7", "0x10", "on", "no", "y", "true", "null"] {
        let text = Render::new()
            .namespace(name)
            .file(&helm::chart().join("ci/everything-values.yaml"))
            .values(&yaml(&include_str!("names.yaml").replace("NAME", &format!("'{name}'"))))
            .text()
            .unwrap();
        let quoted = format!("\"{name}\"");
        for key in ["namespace", "priorityClassName", "serviceAccountName", "values"] {
            let prefix = format!("{key}: ");
            let lines = text.lines().filter_map(|l| l.trim().strip_prefix(&prefix));
            let found: Vec<_> = lines.collect();
            assert!(!found.is_empty(), "{key}");
            for value in found {
                assert_eq!(value.trim_matches(['[', ']']), quoted, "{key}");
            }
        }
    }
}
