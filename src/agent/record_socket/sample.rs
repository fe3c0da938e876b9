//! A record as the plugin sends it, for the tests of Events.

use serde_json::{Value, json};

use crate::record::Record;

/// The UID of the record's pod.
pub const POD_UID: &str = "c0ffee00-0000-4000-8000-000000000001";

/// A record of a redirected pod, with `changes` to its keys.
pub fn record(changes: Value) -> Record {
    let mut record = json!({
        "level": "warn", "command": "ADD", "namespace": "ns", "pod": "web", "pod_uid": POD_UID,
        "container_id": "c", "decision": "redirected", "requests": 2, "ms": 3,
    });
    let Value::Object(changes) = changes else { panic!("changes are an object: {changes}") };
    record.as_object_mut().unwrap().extend(changes);
    Record::parse(record.to_string().as_bytes()).unwrap()
}
