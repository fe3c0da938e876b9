//! Permissions in the cluster and privileges on the node. docs/security.md lists every permission,
//! capability and mount that the chart can render, and no other. `changes` records which of them
//! each value adds.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table::{self, RowName};

use crate::helm::{Objects, Render, ci_values, read, render, values};

const TABLES: &str = include_str!("cases.yaml");

/// Returns values that together render everything.
fn uses() -> impl Iterator<Item = (RowName, Value)> {
    table::rows_of(TABLES, "uses")
}

/// Returns the first cells of each row of the table whose first column has this heading, without
/// backticks.
fn rows<const CELLS: usize>(heading: &str) -> BTreeSet<[String; CELLS]> {
    let page = read(testkit::repository().join("docs/security.md"));
    let table =
        page.split(&format!("\n| {heading} | ")).nth(1).unwrap_or_else(|| panic!("{heading}"));
    let lines = table.lines().skip(2).take_while(|line| line.starts_with("| "));
    let mut rows = BTreeSet::new();
    for line in lines {
        let cells = line.trim_start_matches("| ").split(" | ").take(CELLS);
        let cells: Vec<_> = cells.map(|cell| cell.replace('`', "")).collect();
        rows.insert(cells.try_into().unwrap());
    }
    rows
}

fn words(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned())
}

/// Returns the permissions of each account as resource, verb, account.
fn permissions(objects: &Objects) -> Vec<[String; 3]> {
    let mut found = Vec::new();
    for binding in objects.0.iter().filter(|object| object["subjects"].is_array()) {
        let kind = binding["roleRef"]["kind"].as_str().unwrap();
        let name = binding["roleRef"]["name"].as_str().unwrap();
        let role = objects.get_by_name(kind, name);
        for subject in binding["subjects"].as_array().unwrap() {
            // `serviceAccount.name` changes the name of the agent's account only.
            let is_plugin = subject["name"] == "linkerd-cni-plugin";
            let account = if is_plugin { "linkerd-cni-plugin" } else { "linkerd-cni" };
            for rule in role["rules"].as_array().unwrap() {
                assert!(rule.get("nonResourceURLs").is_none(), "{rule}");
                let names: String =
                    words(&rule["resourceNames"]).map(|name| format!("={name}")).collect();
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        found.push([format!("{resource}{names}"), verb, account.to_owned()]);
                    }
                }
            }
        }
    }
    found
}

#[test]
fn every_permission_of_the_chart_is_explained() {
    let mut uses: Vec<_> = uses().map(|(_, values)| render(values)).collect();
    // Every value is set in one of them, also a value that enables a new feature.
    uses.extend(ci_values().iter().map(|file| Render::new().file(file).objects()));
    let rendered: BTreeSet<_> = uses.iter().flat_map(permissions).collect();
    let mut listed = BTreeSet::new();
    for [resource, verbs, account] in rows("resource") {
        for verb in verbs.split(", ") {
            listed.insert([resource.clone(), verb.to_owned(), account.clone()]);
        }
    }
    assert_eq!(listed, rendered);
}

#[test]
fn every_capability_and_host_directory_of_the_chart_is_explained() {
    let mut capabilities = BTreeSet::new();
    let mut directories = BTreeSet::new();
    for (_name, values) in uses() {
        let objects = render(values);
        let pod = &objects.pod()["spec"];
        assert!(pod.get("initContainers").is_none());
        let volumes = pod["volumes"].as_array().unwrap();
        for container in pod["containers"].as_array().unwrap() {
            let name = container["name"].as_str().unwrap();
            let container_capabilities = &container["securityContext"]["capabilities"];
            assert_eq!(container_capabilities["drop"], json!(["ALL"]), "{container}");
            for capability in words(&container_capabilities["add"]) {
                capabilities.insert([capability, name.to_owned()]);
            }
            for mount in container["volumeMounts"].as_array().unwrap() {
                let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
                let Some(path) = volume["hostPath"]["path"].as_str() else {
                    assert!(volume["emptyDir"].is_object(), "{volume}");
                    continue;
                };
                let access = if mount["readOnly"] == true { "read" } else { "read and write" };
                directories.insert([path, name, access].map(str::to_owned));
            }
        }
    }
    assert_eq!(rows("capability"), capabilities);
    let agent_capabilities =
        capabilities.iter().filter(|[_, container]| container == "install-cni");
    assert_eq!(agent_capabilities.count(), 4);
    let page = read(testkit::repository().join("SECURITY.md"));
    assert!(page.contains("Containers drop all capabilities and add at most four,"));
    assert_eq!(rows("directory of the node"), directories);
}

/// An error in a condition or a policy must not affect other accounts. The cluster test
/// `admission_policy` has the rest.
#[test]
fn admission_policies_apply_only_to_the_releases_account_and_taint() {
    let values = values("startupTaint: a.b/c, repairController: {mode: delete}");
    let objects = Render::new().namespace("mesh").values(&values).objects();
    for name in ["linkerd-cni-token", "linkerd-cni-node", "linkerd-cni-repair"] {
        let spec = &objects.get_by_name("ValidatingAdmissionPolicy", name)["spec"];
        let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
        let account = r#"request.userInfo.username == "system:serviceaccount:mesh:linkerd-cni""#;
        assert!(condition.ends_with(account), "{condition}");
    }
    let taint = objects.get_by_name("ValidatingAdmissionPolicy", "linkerd-cni-node").to_string();
    assert!(taint.contains(r#"taint.key != \"a.b/c\""#), "{taint}");
}

/// A row of `multus` in `cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MultusRow {
    kubernetes: String,
    apis: Vec<String>,
    policy: Option<String>,
}

/// With a cluster, the APIs that the API server serves decide. Without a cluster, the version of
/// Kubernetes decides.
#[test]
fn policy_for_multus_uses_a_version_that_the_api_server_serves() {
    let values = json!({"networkAttachmentDefinition": {"annotatePods": true}});
    for (name, row) in table::rows_of::<MultusRow>(TABLES, "multus") {
        let text = Render::new().kubernetes(&row.kubernetes).apis(row.apis).values(&values).text();
        let Some(version) = row.policy else {
            let error = text.unwrap_err();
            let remedy = "the feature gate MutatingAdmissionPolicy";
            assert!(error.contains(remedy), "{name}: {error}");
            continue;
        };
        let objects = Objects::parse(&text.unwrap());
        for kind in ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"] {
            let api = format!("admissionregistration.k8s.io/{version}");
            assert_eq!(objects.get(kind)["apiVersion"], api, "{name}");
        }
    }
    assert!(!render(json!({})).has_kind("MutatingAdmissionPolicy"));
}

/// The policies of Kyverno have the fields of a MutatingAdmissionPolicy.
#[test]
fn documented_policy_for_kyverno_has_the_charts_expressions() {
    let page = read(testkit::repository().join("docs/openshift.md"));
    let block = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let page_objects = Objects::parse(block);
    let values = json!({"networkAttachmentDefinition": {"annotatePods": true}});
    let chart_objects = Render::new().kubernetes("1.36.0").values(&values).objects();
    let documented = &page_objects.get("MutatingPolicy")["spec"];
    let rendered = chart_objects.get("MutatingAdmissionPolicy")["spec"].as_object().unwrap();
    for (field, value) in rendered {
        assert_eq!(&documented[field], value, "{field}");
    }
}

#[test]
fn documented_commands_print_the_objects_that_rbac_create_false_omits() {
    let page = read(testkit::repository().join("docs/security.md"));
    let section = page.split_once("### With `rbac.create: false`\n").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let patterns: Vec<_> =
        section.split(" -s '").skip(1).map(|rest| rest.split('\'').next().unwrap()).collect();
    assert_eq!(patterns.len(), 2);
    for (name, values) in uses() {
        let mut without = values.clone();
        without["rbac"] = json!({"create": false});
        let without = render(without).0;
        let mut left_out = render(values.clone()).0;
        left_out.retain(|object| !without.contains(object));
        let mut printed = Vec::new();
        for pattern in &patterns {
            printed.extend(Render::new().values(&values).templates(pattern).objects().0);
        }
        for objects in [&mut left_out, &mut printed] {
            objects.sort_by_key(Value::to_string);
        }
        assert_eq!(printed, left_out, "{name}");
    }
}
