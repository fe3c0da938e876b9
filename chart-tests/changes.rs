//! What values change in the rendered objects: each place, with what it has instead. A row
//! `FIRST | SECOND` has the changes of the second values to a chart with the first ones.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::helm::{Objects, Render, chart, read, values};
use crate::records::{assert_record, of_values};

pub fn difference(place: &str, from: &Value, to: &Value, into: &mut Vec<String>) {
    match (from, to) {
        _ if from == to => {}
        (Value::Object(a), Value::Object(b)) if !a.is_empty() && !b.is_empty() => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let [from, to] = [a, b].map(|fields| fields.get(key).unwrap_or(&Value::Null));
                difference(&format!("{place}/{key}"), from, to, into);
            }
        }
        (_, Value::Null) => into.push(format!("{place} is missing")),
        _ => into.push(format!("{place}: {to}")),
    }
}

/// Returns the objects by kind and name, the pod template as `Pods`, and lists of items with names
/// as maps.
pub fn by_name(objects: &Objects) -> Value {
    let labels = objects.get("DaemonSet")["metadata"]["labels"].as_object().unwrap();
    let mut all = Map::new();
    for object in &objects.0 {
        let mut object = object.clone();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if object["kind"] == "DaemonSet" {
            let mut pods = object["spec"]["template"].take();
            // The checksum changes with the ConfigMap.
            let checksum = pods["metadata"]["annotations"]["checksum/config"].take();
            assert_eq!(checksum.as_str().unwrap().len(), 64);
            all.insert("Pods".to_owned(), named_items(pods));
        } else {
            // Labels are left out if they equal the DaemonSet's, which has one label more.
            let own = object["metadata"]["labels"].as_object_mut().unwrap();
            for key in labels.keys().filter(|key| *key != "k8s-app") {
                own.entry(key).or_insert("missing".into());
            }
            own.retain(|key, value| labels.get(key) != Some(value));
        }
        if name == "linkerd-cni-config" {
            object["data"]["cni_network_config"] = objects.plugin();
        }
        if name == "linkerd-cni-dashboard" {
            const FILE: &str = "linkerd-cni.json";
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let dashboard = &mut object["data"][FILE];
            let of_chart = parse(&read(chart().join("dashboards").join(FILE)));
            assert_eq!(parse(dashboard.as_str().unwrap()), of_chart);
            *dashboard = "the dashboard".into();
        }
        all.insert(format!("{} {name}", object["kind"].as_str().unwrap()), named_items(object));
    }
    Value::Object(all)
}

/// Turns lists of items with names into maps, so that an item more changes one place.
pub fn named_items(value: Value) -> Value {
    let name = |item: &Value| {
        let name = ["mountPath", "name", "alert"].iter().find_map(|key| item.get(key))?;
        Some(name.as_str()?.replace('/', "."))
    };
    match value {
        Value::Array(items)
            if !items.is_empty() && items.iter().all(|item| name(item).is_some()) =>
        {
            let count = items.len();
            let named = items.into_iter().map(|item| (name(&item).unwrap(), named_items(item)));
            let named: Map<_, _> = named.collect();
            assert_eq!(named.len(), count, "two items have one name: {named:?}");
            Value::Object(named)
        }
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(key, value)| (key, named_items(value))).collect(),
        ),
        value => value,
    }
}

fn changes(row: &str) -> String {
    let row = row.replace("DIGEST", &"0".repeat(64));
    let (first, second) = row.split_once(" | ").unwrap_or(("", &row));
    let from = Render::new().values(&values(first));
    let [from, to] =
        [from.objects(), Render::new().values(&values(first)).values(&values(second)).objects()];
    // Pods are replaced for a new configuration only.
    let config = |of: &Objects| of.get_by_name("ConfigMap", "linkerd-cni-config")["data"].clone();
    assert_eq!(config(&from) != config(&to), from.checksum() != to.checksum(), "{row}");
    let mut lines = Vec::new();
    difference("", &by_name(&from), &by_name(&to), &mut lines);
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

#[test]
fn each_value_changes_the_recorded_fields() {
    let records = of_values().into_iter().filter(|name| name != "notes");
    records.for_each(|record| assert_record(&record, changes));
}
