//! values.schema.json: wrong types, misspelt names, and keys that values.yaml has too.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::helm::{Render, chart, read, values, yaml};
use crate::records::assert_record;

pub fn schema() -> Value {
    serde_json::from_str(&read(chart().join("values.schema.json"))).unwrap()
}

/// Returns the keys whose description begins with this text, which says that they have no effect.
pub fn keys_without_effect(beginning: &str) -> Vec<String> {
    let root = schema();
    let mut keys = Vec::new();
    for (key, property) in root["properties"].as_object().unwrap() {
        let description = property["description"].as_str().unwrap_or_default();
        if description.starts_with(beginning) {
            keys.push(key.clone());
        }
    }
    keys
}

/// Returns the schema to which a `$ref` leads.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref") {
        Some(target) => {
            let pointer = target.as_str().unwrap().strip_prefix('#');
            let pointer = pointer.expect("a $ref to another file, which helm would fetch");
            root.pointer(pointer).unwrap()
        }
        None => schema,
    }
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().map(|t| t.as_str().unwrap()).collect(),
        _ => vec![],
    }
}

/// Returns the reasons with which helm rejects these values.
fn reasons(values: &Value, render: Render) -> String {
    let error = render.values(values).text().expect_err("accepted");
    // An error of a template.
    if let Some((_, rest)) = error.split_once("execution error at (")
        && let Some((_, message)) = rest.split_once("): ")
    {
        return message.lines().next().unwrap().to_owned();
    }
    // Errors of the schema follow two lines of helm.
    let lines: Vec<_> = error.lines().skip(2).filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[test]
fn helm_3_and_helm_4_reject_an_invalid_value_with_its_reason() {
    assert_record("invalid", |row| {
        let values = values(&row.replace("DIGEST", &"0".repeat(64)));
        let helm_4_reasons = reasons(&values, Render::new());
        let helm_3_reasons = reasons(&values, Render::new().helm_3());
        assert_eq!(helm_4_reasons, helm_3_reasons, "{row}");
        helm_4_reasons
    });
}

/// Fails for a schema that accepts every type, at this place or below.
fn assert_typed(root: &Value, pointer: &str, schema: &Value) {
    let schema = resolve(root, schema);
    // A key of older charts, or one that `enum` restricts, has no type.
    let types = types(schema);
    let is_open = ["boolean", "string", "array"].iter().all(|one| types.contains(one));
    assert!(!is_open, "{pointer} takes anything");
    let mut children = Vec::new();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        children.push((key.as_str(), property));
    }
    children.push(("additionalProperties", &schema["additionalProperties"]));
    children.push(("items", &schema["items"]));
    for (key, child) in children {
        if child.is_object() {
            assert_typed(root, &format!("{pointer}/{key}"), child);
        }
    }
}

#[test]
fn schema_restricts_the_type_of_every_value() {
    let root = schema();
    assert_typed(&root, "", &root);
}

/// Fails for an object with named properties that accepts other names, or whose list of names
/// differs from them.
fn assert_closed(place: &str, node: &Value) {
    let Value::Object(fields) = node else { return };
    // A parent chart may share other names.
    let is_open = place == "/properties/global";
    let has_names = fields.get("properties").is_some_and(Value::is_object);
    if !is_open && has_names && fields.contains_key("type") {
        assert_eq!(node["additionalProperties"], false, "{place}");
        if let Some(names) = node["propertyNames"]["enum"].as_array() {
            let names: BTreeSet<_> = names.iter().map(|name| name.as_str().unwrap()).collect();
            let keys = node["properties"].as_object().unwrap().keys();
            assert_eq!(names, keys.map(String::as_str).collect(), "{place}");
        }
    }
    for (key, field) in fields {
        assert_closed(&format!("{place}/{key}"), field);
    }
}

#[test]
fn every_object_with_named_properties_rejects_other_names() {
    assert_closed("", &schema());
    // Helm's validator ignores `format`.
    assert!(!read(chart().join("values.schema.json")).contains("\"format\""));
}

#[test]
fn schema_and_values_name_the_same_keys() {
    /// Fields of Kubernetes. values.yaml has only those with a default.
    const KUBERNETES: &str = "affinity dnsConfig livenessProbe nodeAffinity podSecurityContext readinessProbe \
         securityContext seLinuxOptions startupProbe updateStrategy";

    fn compare(root: &Value, place: &str, schema: &Value, values: &Value) {
        let Some(properties) = resolve(root, schema)["properties"].as_object() else {
            return;
        };
        for (key, property) in properties {
            // A key of older charts has no type.
            if types(resolve(root, property)).is_empty() {
                assert!(values.get(key).is_none(), "{place}/{key} should have a type");
                continue;
            }
            let value =
                values.get(key).unwrap_or_else(|| panic!("{place}/{key} is not in values.yaml"));
            if !KUBERNETES.split(' ').any(|name| name == key) {
                compare(root, &format!("{place}/{key}"), property, value);
            }
        }
    }
    // If the schema lacks a key of values.yaml, Helm rejects the defaults.
    let root = schema();
    compare(&root, "", &root, &yaml(&read(chart().join("values.yaml"))));
}

/// YAML anchors under `x-` keys, and the `$schema` that editors read.
#[test]
fn chart_ignores_keys_that_begin_with_x_or_a_dollar() {
    let default = Render::new().text().unwrap();
    let with_keys = |text: &str| Render::new().values(&values(text)).text();
    let ignored = "x-tolerations: [{operator: Exists}], $schema: https://a.example/s.json";
    assert_eq!(with_keys(ignored).unwrap(), default);
    assert!(with_keys("xtolerations: []").is_err());
}
