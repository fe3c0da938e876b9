//! Chart.yaml, values.yaml, README.md and the package.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::json;

use crate::helm::{chart, files, helm, read, render, yaml};
use crate::records::leaves;

#[test]
fn default_image_tag_is_the_crate_version() {
    let metadata = yaml(&read(chart().join("Chart.yaml")));
    assert_eq!(metadata["appVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
    let objects = render(json!({"repairController": {"enabled": true}}));
    let annotated = yaml(metadata["annotations"]["artifacthub.io/images"].as_str().unwrap());
    let annotated: Vec<_> = annotated.as_array().unwrap().iter().map(|i| &i["image"]).collect();
    for container in objects.pod()["spec"]["containers"].as_array().unwrap() {
        assert!(annotated.contains(&&container["image"]), "{}", container["image"]);
    }
}

#[test]
fn changes_have_kinds_that_artifact_hub_accepts() {
    let metadata = yaml(&read(chart().join("Chart.yaml")));
    let changes = yaml(metadata["annotations"]["artifacthub.io/changes"].as_str().unwrap());
    for change in changes.as_array().unwrap() {
        let kind = change["kind"].as_str().unwrap();
        let kinds = ["added", "changed", "deprecated", "removed", "fixed", "security"];
        assert!(kinds.contains(&kind), "{kind}");
        assert!(!change["description"].as_str().unwrap().is_empty());
    }
}

#[test]
fn templates_read_only_values_of_values_yaml() {
    let values = yaml(&read(chart().join("values.yaml")));
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(chart().join("templates")).unwrap() {
        let text = read(entry.unwrap().path());
        for prefix in [".Values.", "$values."] {
            for rest in text.split(prefix).skip(1) {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
                used.insert(rest[..end].to_string());
            }
        }
    }
    let documented: BTreeSet<_> = values.as_object().unwrap().keys().cloned().collect();
    assert_eq!(used, documented);
}

/// helm-docs omits values without description below a described map; the step `chart-lint` compares
/// the rest.
#[test]
fn readme_describes_every_value() {
    let readme = read(chart().join("README.md"));
    let table = readme.split_once("| value | default | description |").unwrap().1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    // Maps are left out, because their members have rows of their own.
    let rows = rows.filter(|row| row.split(" | ").nth(1).is_some_and(|cell| !cell.is_empty()));
    let described: Vec<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let mut all = BTreeSet::new();
    leaves("", &yaml(&read(chart().join("values.yaml"))), &mut all);
    for leaf in &all {
        let is_inside = |path: &&str| format!("{leaf}.").starts_with(&format!("{path}."));
        assert!(described.iter().any(is_inside), "{leaf} has no row");
    }
}

#[test]
fn package_contains_no_development_files() {
    let target = tempfile::tempdir().unwrap();
    let directory = target.path().to_str().unwrap();
    let output = helm(&["package", chart().to_str().unwrap(), "--destination", directory]);
    assert!(output.status.success(), "{output:?}");
    let archive = fs::read_dir(target.path()).unwrap().next().unwrap().unwrap().path();
    let listing = Command::new("tar").arg("tzf").arg(archive).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let mut packed: Vec<_> =
        listing.lines().filter_map(|f| f.strip_prefix("linkerd2-cni/")).collect();
    packed.sort_unstable();
    // All files of these directories, and these other files.
    let mut expected: Vec<_> = ["templates", "platforms", "dashboards", "alerts"]
        .iter()
        .flat_map(|directory| files(&chart().join(directory)))
        .map(|path| path.strip_prefix(chart()).unwrap().display().to_string())
        .collect();
    expected.extend(
        [".helmignore", "Chart.yaml", "LICENSE", "README.md", "values.schema.json", "values.yaml"]
            .map(String::from),
    );
    expected.sort_unstable();
    assert_eq!(packed, expected);
}
