//! The repair mode `label`.

use serde_json::json;

use crate::kube::{Client, Error};
use crate::repair::stranded::{LABEL, StrandedPod};

/// Sets [`LABEL`] on exactly the pod that was found. Fails with status 409 if the pod has
/// changed, or is another pod of the same name.
pub fn label(client: &Client, pod: &StrandedPod) -> Result<(), Error> {
    let patch = json!({"metadata": {
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "labels": {LABEL: "true"},
    }});
    client.merge_patch(&pod.api_path(), &patch)
}
