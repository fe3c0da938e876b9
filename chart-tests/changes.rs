//! Which fields of the rendered objects a value changes. A record has each changed field with its
//! new value. A row `FIRST | SECOND` has the changes that the second values make to a chart with
//! the first values.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::helm::{Objects, Render, chart, read, values};
use crate::records::{assert_record, value_records};

/// Returns a line for each field whose value differs. `path` is the path of the compared values.
pub fn differences(path: &str, before: &Value, after: &Value) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    if let (Value::Object(old_fields), Value::Object(new_fields)) = (before, after)
        && !old_fields.is_empty()
        && !new_fields.is_empty()
    {
        let keys: BTreeSet<&String> = old_fields.keys().chain(new_fields.keys()).collect();
        let mut lines = Vec::new();
        for key in keys {
            let old = old_fields.get(key).unwrap_or(&Value::Null);
            let new = new_fields.get(key).unwrap_or(&Value::Null);
            lines.extend(differences(&format!("{path}/{key}"), old, new));
        }
        return lines;
    }
    if after.is_null() {
        return vec![format!("{path} is missing")];
    }
    vec![format!("{path}: {after}")]
}

/// Returns the objects by kind and name. The DaemonSet's pod template is at `Pods`. Lists of items
/// with names are maps.
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
            let file = parse(&read(chart().join("dashboards").join(FILE)));
            assert_eq!(parse(dashboard.as_str().unwrap()), file);
            *dashboard = "the dashboard".into();
        }
        all.insert(format!("{} {name}", object["kind"].as_str().unwrap()), named_items(object));
    }
    Value::Object(all)
}

/// Turns lists of items with names into maps, so that a new item is one change.
pub fn named_items(value: Value) -> Value {
    match value {
        Value::Array(items)
            if !items.is_empty() && items.iter().all(|item| item_name(item).is_some()) =>
        {
            let count = items.len();
            let mut map = Map::new();
            for item in items {
                map.insert(item_name(&item).unwrap(), named_items(item));
            }
            assert_eq!(map.len(), count, "two items have one name: {map:?}");
            Value::Object(map)
        }
        Value::Object(fields) => {
            let mut map = Map::new();
            for (key, value) in fields {
                map.insert(key, named_items(value));
            }
            Value::Object(map)
        }
        value => value,
    }
}

/// Returns the name of an item of a list. `None`: the item has no name.
fn item_name(item: &Value) -> Option<String> {
    let name = ["mountPath", "name", "alert"].iter().find_map(|key| item.get(key))?;
    Some(name.as_str()?.replace('/', "."))
}

/// Returns the changes that the values of a row make.
fn changes(row: &str) -> String {
    let row = row.replace("DIGEST", &"0".repeat(64));
    let (first, second) = row.split_once(" | ").unwrap_or(("", &row));
    let before = Render::new().values(&values(first)).objects();
    let after = Render::new().values(&values(first)).values(&values(second)).objects();
    // Pods are replaced for a new configuration only.
    let config =
        |objects: &Objects| objects.get_by_name("ConfigMap", "linkerd-cni-config")["data"].clone();
    let is_config_changed = config(&before) != config(&after);
    let is_checksum_changed = before.checksum() != after.checksum();
    assert_eq!(is_config_changed, is_checksum_changed, "{row}");
    let lines = differences("", &by_name(&before), &by_name(&after));
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

#[test]
fn each_value_changes_the_recorded_fields() {
    for record in value_records() {
        if record != "notes" {
            assert_record(&record, changes);
        }
    }
}
