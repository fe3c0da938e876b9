//! values.schema.json: wrong types, misspelt names, and keys that values.yaml has too.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::helm::{Render, chart, read, values, yaml};
use crate::records::assert_record;

pub fn schema() -> Value {
    serde_json::from_str(&read(chart().join("values.schema.json"))).unwrap()
}

pub fn without_effect(beginning: &str) -> Vec<String> {
    let root = schema();
    let all = root["properties"].as_object().unwrap().iter();
    let begins = |of: &Value| of["description"].as_str().is_some_and(|d| d.starts_with(beginning));
    all.filter(|(_, of)| begins(of)).map(|(key, _)| key.clone()).collect()
}

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

fn reasons(values: &Value, render: Render) -> String {
    let error = render.values(values).text().expect_err("accepted");
    let execution =
        error.split_once("execution error at (").and_then(|rest| rest.1.split_once("): "));
    match execution {
        Some((_, message)) => message.lines().next().unwrap().to_owned(),
        None => {
            error.lines().skip(2).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
        }
    }
}

#[test]
fn an_invalid_value_is_rejected_with_its_name_and_reason_by_helm_3_and_helm_4() {
    assert_record("invalid", |row| {
        let values = values(&row.replace("DIGEST", &"0".repeat(64)));
        let [four, three] =
            [Render::new(), Render::new().helm_3()].map(|render| reasons(&values, render));
        assert_eq!(four, three, "{row}");
        four
    });
}

fn assert_typed(root: &Value, pointer: &str, schema: &Value) {
    let schema = resolve(root, schema);
    // A key of older charts, or one that `enum` restricts, has no type.
    let types = types(schema);
    let is_open = ["boolean", "string", "array"].iter().all(|one| types.contains(one));
    assert!(!is_open, "{pointer} takes anything");
    let inside = ["additionalProperties", "items"].map(|key| (key, &schema[key]));
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (key, property) in properties.map(|(key, of)| (key.as_str(), of)).chain(inside) {
        if property.is_object() {
            assert_typed(root, &format!("{pointer}/{key}"), property);
        }
    }
}

#[test]
fn no_value_takes_every_type() {
    let root = schema();
    assert_typed(&root, "", &root);
}

fn enumerated<'a>(schema: &'a Value, into: &mut BTreeSet<&'a str>) {
    let words = schema["enum"].as_array().into_iter().flatten();
    into.extend(words.filter_map(Value::as_str));
    for part in schema["allOf"].as_array().into_iter().flatten() {
        enumerated(&part["then"], into);
    }
}

/// The places whose names the chart itself checks, as its message has the nearest name, and these names.
fn names_of_the_chart() -> BTreeMap<String, BTreeSet<String>> {
    let template = read(chart().join("templates/_names.tpl"));
    let define = |name: &str| {
        let start = format!("{{{{- define \"linkerd-cni.{name}\" -}}}}\n");
        let rest = template.split_once(&start).unwrap().1;
        rest.split("{{- end }}").next().unwrap().replace("{{- \" \" }}", "")
    };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    let names: BTreeMap<String, String> =
        serde_json::from_value(crate::helm::yaml(&define("names"))).unwrap();
    let pointer = |place: &str| match place {
        "" => String::new(),
        _ => format!("/properties/{}", place.replace('.', "/properties/")),
    };
    let mut names: BTreeMap<_, _> =
        names.iter().map(|(place, names)| (pointer(place), words(names))).collect();
    names.get_mut("").unwrap().extend(words(&define("oldNames")));
    names
}

#[test]
fn every_object_with_named_properties_is_closed_by_the_chart_or_suggests_names() {
    let root = schema();
    let names = names_of_the_chart();
    for (place, names) in &names {
        let mut node = &root;
        for key in place.split("/properties/").skip(1) {
            node = resolve(&root, &node["properties"][key]);
        }
        let keys = node["properties"].as_object().unwrap().keys();
        assert_eq!(&keys.cloned().collect::<BTreeSet<_>>(), names, "{place}");
    }
    fn walk(names: &BTreeMap<String, BTreeSet<String>>, place: &str, node: &Value) {
        if let Value::Object(fields) = node {
            // A parent chart may share other names.
            let is_closed = place == "/properties/global"
                || place == "/definitions/resources"
                || names.contains_key(place);
            let has_names = fields.get("properties").is_some_and(Value::is_object);
            if !is_closed && has_names && fields.contains_key("type") {
                assert_eq!(node["additionalProperties"], false, "{place}");
                let keys = node["properties"].as_object().unwrap().keys();
                let keys: BTreeSet<_> = keys.map(String::as_str).collect();
                let mut suggested = BTreeSet::new();
                enumerated(&node["propertyNames"], &mut suggested);
                // A single name needs no list.
                assert!(suggested == keys || keys.len() == 1, "{place}: {suggested:?}");
            }
            for (key, field) in fields {
                walk(names, &format!("{place}/{key}"), field);
            }
        }
    }
    walk(&names, "", &root);
    // Helm's validator ignores `format`.
    assert!(!read(chart().join("values.schema.json")).contains("\"format\""));
}

#[test]
fn schema_and_values_name_the_same_keys() {
    /// Fields of Kubernetes. values.yaml has only those with a default.
    const KUBERNETES: &str = "livenessProbe nodeAffinity readinessProbe securityContext seLinuxOptions \
         startupProbe updateStrategy";

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
