//! The presets of `platform`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::helm::{Render, chart, files, platforms, read, render, yaml};
use crate::schema::schema;

#[test]
fn platform_name_renders_the_same_as_its_values_file() {
    for (name, file) in platforms() {
        let by_file = Render::new().file(&file).objects();
        assert_eq!(render(json!({"platform": name})).0, by_file.0, "{name}");
    }
}

/// Without these expressions, agents would be placed on nodes where they cannot run, and no rollout
/// would end.
#[test]
fn platform_adds_its_expressions_to_each_required_term_of_an_affinity() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let users_expression = json!({"key": "a", "operator": "Exists"});
    for (platform, key, value) in
        [("eks", "eks.amazonaws.com/compute-type", "fargate"), ("aks", "type", "virtual-kubelet")]
    {
        let platform_expression = json!({"key": key, "operator": "NotIn", "values": [value]});
        let platform_terms = json!([{"matchExpressions": [platform_expression]}]);
        let platform_affinity = json!({required: {"nodeSelectorTerms": platform_terms}});
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]);
        let preference =
            json!([{"weight": 1, "preference": {"matchExpressions": [users_expression]}}]);
        let with_preference = json!({required: platform_affinity[required], preferred: preference});
        for (name, given, expected) in [
            ("no affinity", json!(null), platform_affinity.clone()),
            ("only a preference", json!({preferred: preference}), with_preference),
            ("no term", json!({required: {"nodeSelectorTerms": []}}), platform_affinity.clone()),
            (
                "two terms and one that matches no node",
                json!({required: {"nodeSelectorTerms":
                    [{"matchExpressions": [users_expression]}, {"matchFields": fields}, {}]}}),
                json!({required: {"nodeSelectorTerms": [
                    {"matchExpressions": [users_expression, platform_expression]},
                    {"matchFields": fields, "matchExpressions": [platform_expression]},
                    {},
                ]}}),
            ),
        ] {
            let objects = render(json!({"platform": platform, "nodeAffinity": given}));
            let affinity = &objects.pod()["spec"]["affinity"]["nodeAffinity"];
            assert_eq!(*affinity, expected, "{platform}: {name}");
        }
    }
}

/// A fact about a platform ends with a release of that platform.
#[test]
fn each_preset_names_its_source_and_the_month_of_the_source() {
    for (name, file) in platforms() {
        let text = read(&file);
        let mut sources = 0;
        for line in text.lines() {
            let Some(source) = line.strip_prefix("# Source") else { continue };
            sources += 1;
            // "# Source (2026-08): ..."
            let Some((date, _)) = source.split_once("): ") else {
                panic!("{name}: {line}");
            };
            let year_and_month = date.strip_prefix(" (20").unwrap_or_default();
            let digits = year_and_month.bytes().filter(u8::is_ascii_digit).count();
            assert!(year_and_month.len() == "26-08".len() && digits == 4, "{name}: {line}");
        }
        assert!(sources >= 1, "{name} names no source");
    }
}

/// Without the label, SELinux denies the agent to write to the directories of these platforms.
#[test]
fn presets_of_platforms_with_selinux_set_its_label() {
    for (name, file) in platforms() {
        let has_label = yaml(&read(&file))["seLinuxOptions"] == json!({"type": "spc_t"});
        assert_eq!(has_label, ["k3s", "openshift", "rke2"].contains(&&*name), "{name}");
    }
}

/// With `--reuse-values` the defaults of upstream's chart look like values of the user.
#[test]
fn platform_overrides_the_defaults_of_upstreams_chart() {
    let values = read(testkit::repository().join("chart-tests/values/upstream.yaml"));
    let upgraded = |platform: &str| {
        let render = Render::new().with_file("values.yaml", &values);
        render.values(&json!({"platform": platform, "image": {"version": ""}})).objects()
    };
    let data = upgraded("k3s").get("ConfigMap")["data"].clone();
    assert_eq!(data["dest_cni_bin_dir"], "/var/lib/rancher/k3s/data/cni");
    assert!(upgraded("gke").has_kind("ResourceQuota"));
    assert!(upgraded("openshift").has_kind("NetworkAttachmentDefinition"));
}

#[test]
fn schema_pages_and_record_name_every_platform() {
    let enumerated = schema()["properties"]["platform"]["enum"].clone();
    let page = read(testkit::repository().join("docs/platforms.md"));
    let record = read(testkit::repository().join("chart-tests/records/platforms.txt"));
    let mut names = vec![json!("")];
    for (name, _) in platforms() {
        let mut cells = page.lines().filter_map(|line| line.split(" | ").nth(1));
        let is_named = cells.any(|cell| cell.contains(&format!("`{name}`")));
        assert!(is_named, "docs/platforms.md has no row for {name}");
        assert!(record.contains(&format!("platform: {name}\n")), "no record of {name}");
        names.push(json!(name));
    }
    let differences = read(testkit::repository().join("docs/differences.md"));
    let count = format!("| platform presets | none | 6 | {} |", platforms().len());
    assert!(differences.contains(&count), "docs/differences.md has another number of presets");
    names.push(Value::Null);
    assert_eq!(enumerated, json!(names));
}

/// Commands on a node need these directories, for example to clean a node after an uninstall.
#[test]
fn page_has_the_cni_directories_of_each_platform() {
    let page = read(testkit::repository().join("docs/platforms.md"));
    for (name, file) in platforms() {
        let values = yaml(&read(&file));
        let directory = |key: &str| values[key].as_str().unwrap().to_owned();
        let bin_dir = directory("destCNIBinDir");
        let net_dir = directory("destCNINetDir");
        let row = format!("| `{name}` | `{bin_dir}` | `{net_dir}` |\n");
        assert!(page.contains(&row), "docs/platforms.md has no row {row}");
    }
}

/// A template that reads such a value from `.Values` would render the value without the platform's.
#[test]
fn templates_read_platform_values_only_through_their_helper() {
    let mut names = BTreeSet::new();
    for (_, file) in platforms() {
        names.extend(yaml(&read(file)).as_object().unwrap().keys().cloned());
    }
    assert!(names.contains("destCNINetDir") && names.contains("openshift"), "{names:?}");
    for path in files(&chart().join("templates")) {
        let text = read(&path);
        for name in &names {
            for read in [format!(".Values.{name}"), format!("(.Values.{name})")] {
                assert!(!text.contains(&read), "{} reads {read}", path.display());
            }
        }
    }
}
