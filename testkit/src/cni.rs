//! What a container runtime passes to the plugin: the plugin entry and the environment.

use serde_json::Value;

/// The plugin entry as upstream's chart renders it.
pub fn upstream_entry() -> Value {
    serde_json::from_str(include_str!("upstream_entry.json")).unwrap()
}

/// The variables of a call by the CNI spec, without `CNI_ARGS`.
pub fn environment<'a>(command: &'a str, netns: &'a str) -> [(&'static str, &'a str); 5] {
    [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ]
}
