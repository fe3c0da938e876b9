//! Chart.yaml, values.yaml, README.md and the package.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::helm::{Render, chart, files, helm, read, with, yaml};
use crate::schema::schema;

fn values() -> Value {
    yaml(&read(chart().join("values.yaml")))
}

/// Collects each leaf as "a.b.c" with its value.
fn leaves(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                leaves(&path, field, into);
            }
        }
        _ => {
            into.insert(prefix.to_string(), value.clone());
        }
    }
}

#[test]
fn the_default_image_tag_is_the_crate_version() {
    let metadata = yaml(&read(chart().join("Chart.yaml")));
    assert_eq!(metadata["appVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
    let objects = with(json!({"repairController": {"enabled": true}}));
    let annotated = yaml(metadata["annotations"]["artifacthub.io/images"].as_str().unwrap());
    let annotated: Vec<_> = annotated.as_array().unwrap().iter().map(|i| &i["image"]).collect();
    for container in objects.pod()["spec"]["containers"].as_array().unwrap() {
        assert!(annotated.contains(&&container["image"]), "{}", container["image"]);
    }
}

#[test]
fn the_changes_have_kinds_that_artifact_hub_accepts() {
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
    let values = values();
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(chart().join("templates")).unwrap() {
        let text = read(entry.unwrap().path());
        for rest in text.split(".Values.").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
            used.insert(rest[..end].to_string());
        }
    }
    let documented: BTreeSet<_> = values.as_object().unwrap().keys().cloned().collect();
    assert_eq!(used, documented);
}

/// Finds values that no template reads, including nested ones.
#[test]
fn every_value_has_an_effect() {
    let everything = |values: &Value| {
        // Only modes that change pods have an admission policy.
        let repair = json!({"repairController": {"mode": "delete"}});
        let render = Render::new().values(&repair).values(values);
        render.text().unwrap() + &render.notes()
    };
    let others = ["ci/overrides-values.yaml", "ci/everything-values.yaml"]
        .map(|file| -> Value { yaml(&read(chart().join(file))) });
    let default = everything(&json!({}));
    let mut all = BTreeMap::new();
    leaves("", &values(), &mut all);
    for path in all.keys() {
        let pointer = format!("/{}", path.replace('.', "/"));
        let changed = match path.as_str() {
            "repairController.enabled" => json!(false),
            "repairController.enableSecurityContext" => json!(false),
            "updateStrategy.type" => json!("OnDelete"),
            "platform" => json!("k3s"),
            // Kubernetes 1.31 has no such policies.
            "networkAttachmentDefinition.annotatePods" => json!(true),
            "admissionPolicy.enabled" | "chained" | "rbac.create" | "serviceAccount.create" => {
                json!(false)
            }
            "extraVolumeMounts" => json!([{"name": "linkerd-tmp-dir", "mountPath": "/scratch"}]),
            path if path.contains("resources.") => json!("1"),
            _ => {
                let found = others.iter().find_map(|values| values.pointer(&pointer));
                found.unwrap_or_else(|| panic!("ci lacks {path}")).clone()
            }
        };
        let mut values = path.rsplit('.').fold(changed, |inner, key| json!({key: inner}));
        // Values of a disabled object have an effect only if the object is enabled.
        for object in [
            "podMonitor",
            "prometheusRule",
            "grafanaDashboard",
            "resourceQuota",
            "networkAttachmentDefinition",
        ] {
            if path.starts_with(object) && !path.ends_with(".enabled") {
                values[object]["enabled"] = json!(true);
                let on = everything(&json!({object: {"enabled": true}}));
                assert_ne!(everything(&values), on, "{path} changes nothing");
            }
        }
        assert_ne!(everything(&values), default, "{path} changes nothing");
    }
}

/// Finds values without description below a described map, which helm-docs omits silently.
#[test]
fn the_readme_and_the_schema_describe_every_value_with_its_default() {
    let readme = read(chart().join("README.md"));
    let table = readme.split_once("| value | default | description |").unwrap().1;
    let mut described = BTreeSet::new();
    for row in table.lines().skip(2).take_while(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let path = cells[0].trim_start_matches("| ").trim_matches('`');
        let value = values().pointer(&format!("/{}", path.replace('.', "/"))).unwrap().clone();
        match cells[1].trim_matches('`') {
            // A map whose members have their own rows.
            "" => assert!(value.is_object(), "{path}"),
            "requests: {cpu: 10m, memory: 16Mi}" => assert!(path.ends_with("resources"), "{path}"),
            default => assert_eq!(yaml(default), value, "{path}"),
        }
        if !cells[1].is_empty() {
            described.insert(path.to_string());
        }
        let property = format!("/properties/{}", path.replace('.', "/properties/"));
        let description = schema().pointer(&property).unwrap()["description"].clone();
        assert!(cells[2].trim_end_matches(" |").replace("\\|", "|") == description, "{path}");
    }
    let mut all = BTreeMap::new();
    leaves("", &values(), &mut all);
    for leaf in all.keys() {
        let is_described = described.iter().any(|path| {
            leaf.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        assert!(is_described, "{leaf} has no row");
    }
}

#[test]
fn the_package_contains_no_development_files() {
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
    let mut expected: Vec<_> = ["templates", "platforms", "dashboards"]
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
