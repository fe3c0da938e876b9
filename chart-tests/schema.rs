//! values.schema.json: wrong types, misspelt names, and keys that values.yaml has too.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::helm::{chart, read, rejection, with, yaml};

pub fn schema() -> Value {
    serde_json::from_str(&read(chart().join("values.schema.json"))).unwrap()
}

/// Returns the schema itself, or the definition that it refers to.
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

#[test]
fn strings_and_numbers_are_accepted_alike() {
    for values in [
        json!({"inboundProxyPort": "4143", "proxyUID": "2102", "proxyGID": "-1", "revisionHistoryLimit": "3"}),
        json!({"portsToRedirect": 80, "ignoreInboundPorts": 25, "ignoreOutboundPorts": 25}),
        json!({"resources": {"cpu": {"limit": 0.5, "request": "10m"}, "memory": {"limit": "1e6"}}}),
        json!({"updateStrategy": {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}}),
        // Kubernetes ignores rollingUpdate with OnDelete.
        json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 0}}}),
        json!({"skipSubnets": "10.0.0.1/8, ::/0,fd00:1:2::/48,::ffff:10.0.0.0/104,0.0.0.0/0"}),
        json!({"image": {"name": "localhost:5000/cni-plugin"}}),
        json!({"proxyUID": "2147483647", "proxyGID": 2_147_483_647}),
        json!({"repairController": {"enabled": true, "logLevel": "linkerd_cni_repair_controller=info,warn"}}),
        json!({"repairController": {"enabled": true, "logLevel": "WARN, kube::client[request]=trace,linkerd_cni_repair_controller"}}),
        json!({"image": {"version": format!("v1@sha256:{}", "0".repeat(64))}}),
        json!({"image": {"version": 20_261_122}, "minReadySeconds": "5"}),
    ] {
        with(values);
    }
}

/// The cases are generated from the schema, so that they include every new value. Helm names all wrong values at once, so
/// that the cases of one depth, of which none is inside another, need one render.
#[test]
fn every_value_rejects_a_wrong_type() {
    let root = schema();
    let mut wrong = Vec::new();
    collect(&root, &root, "", &|value| value, &mut wrong);
    assert!(wrong.len() > 50, "only {} cases", wrong.len());
    let mut by_depth = BTreeMap::<usize, (Value, Vec<String>)>::new();
    for (pointer, values) in wrong {
        let depth = pointer.matches('/').count();
        let (all, pointers) = by_depth.entry(depth).or_insert((json!({}), Vec::new()));
        merge(all, values);
        pointers.push(pointer);
    }
    for (values, pointers) in by_depth.into_values() {
        let error = rejection(&values);
        for pointer in pointers {
            assert!(error.contains(&format!("at '{pointer}': got ")), "{pointer}: {error}");
        }
    }
}

/// Adds the fields of `more`, also inside of fields and of first items that both have.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(json!({})), value);
            }
        }
        (Value::Array(into), Value::Array(more)) if !into.is_empty() => {
            more.into_iter().for_each(|item| merge(&mut into[0], item));
        }
        (into, more) => *into = more,
    }
}

/// Adds, for each property in `schema`, values in which only this property has a wrong type. `wrap`
/// puts a value where the schema applies.
fn collect(
    root: &Value,
    schema: &Value,
    pointer: &str,
    wrap: &dyn Fn(Value) -> Value,
    wrong: &mut Vec<(String, Value)>,
) {
    let schema = resolve(root, schema);
    let allowed = types(schema);
    if !pointer.is_empty() && !allowed.is_empty() {
        let candidates = [("boolean", json!(true)), ("string", json!("x")), ("array", json!([]))];
        let candidate = candidates.into_iter().find(|(kind, _)| !allowed.contains(kind));
        let (_, value) = candidate.unwrap_or_else(|| panic!("{pointer} takes anything"));
        wrong.push((pointer.to_string(), wrap(value)));
    }
    let inside =
        |key: &str, value: Value| wrap(Value::Object(Map::from_iter([(key.to_string(), value)])));
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        collect(root, property, &format!("{pointer}/{key}"), &|value| inside(key, value), wrong);
    }
    if schema["additionalProperties"].is_object() {
        let property = &schema["additionalProperties"];
        collect(root, property, &format!("{pointer}/some"), &|value| inside("some", value), wrong);
    }
    if schema.get("items").is_some() {
        collect(
            root,
            &schema["items"],
            &format!("{pointer}/0"),
            &|value| wrap(json!([value])),
            wrong,
        );
    }
}

/// Collects the words of all `enum`s.
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
    const KUBERNETES: [&str; 7] = [
        "livenessProbe",
        "nodeAffinity",
        "readinessProbe",
        "securityContext",
        "seLinuxOptions",
        "startupProbe",
        "updateStrategy",
    ];

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
            if !KUBERNETES.contains(&key.as_str()) {
                compare(root, &format!("{place}/{key}"), property, value);
            }
        }
    }
    // If the schema lacks a key of values.yaml, Helm rejects the defaults.
    let root = schema();
    compare(&root, "", &root, &yaml(&read(chart().join("values.yaml"))));
}
