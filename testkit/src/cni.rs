//! What a container runtime passes to the plugin: the plugin entry and the environment.

use serde_json::{Value, json};

/// The plugin entry as upstream's chart renders it.
pub fn upstream_entry() -> Value {
    json!({
        "name": "linkerd-cni",
        "type": "linkerd-cni",
        "log_level": "info",
        "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
        "linkerd": {
            "incoming-proxy-port": 4143,
            "outgoing-proxy-port": 4140,
            "proxy-uid": 2102,
            "ports-to-redirect": [],
            "inbound-ports-to-ignore": ["4191", "4190"],
            "simulate": false,
            "use-wait-flag": false,
            "iptables-mode": "nft",
            "ipv6": false,
        },
    })
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
