//! Manifests of the load's pods.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::load::NAMESPACE;
use crate::pod::Kind;
use crate::pods;

const STATIC_PODS: &str = "/var/lib/linkerd2-cni-cluster/static-pods";

/// File of the static pod `name`, which kubelet reads.
pub fn static_path(name: &str) -> PathBuf {
    PathBuf::from(STATIC_PODS).join(format!("{name}.json"))
}

/// Name of the node, which kubelet appends to the name of a static pod.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_lowercase()
}

/// Manifest of a pod of the load.
pub fn manifest(name: &str, kind: Kind) -> Value {
    let mut pod = match kind {
        Kind::Unmeshed => pods::unmeshed(name),
        Kind::Injected | Kind::Manual => pods::validated(name, "5s"),
    };
    if kind == Kind::Injected {
        let annotations = &mut pod["metadata"]["annotations"];
        annotations["linkerd.io/inject"] = json!("enabled");
        annotations["linkerd.io/created-by"] = json!("linkerd/proxy-injector test");
    }
    pod["metadata"]["namespace"] = NAMESPACE.into();
    pod["spec"]["automountServiceAccountToken"] = false.into();
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    pod
}
