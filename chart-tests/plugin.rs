//! The plugin configuration, which the agent chains in network configs.

use serde_json::{Value, json};

use crate::cni::upstream_entry;
use crate::helm::with;

#[test]
fn the_plugin_configuration_has_upstreams_keys_and_more() {
    let mut expected = upstream_entry();
    expected["capabilities"] = json!({"io.kubernetes.cri.pod-annotations": true});
    let linkerd = &mut expected["linkerd"];
    linkerd["iptables-mode"] = json!("auto");
    linkerd["api-retry-seconds"] = json!(10);
    linkerd["agent-namespace"] = json!("linkerd-cni");
    assert_eq!(with(json!({})).plugin(), expected);
}

#[test]
fn each_value_reaches_the_plugin_configuration() {
    let inbound = "inbound-ports-to-ignore";
    let outbound = "outbound-ports-to-ignore";
    let cases = [
        (json!({"inboundProxyPort": 5143}), "incoming-proxy-port", json!(5143)),
        (json!({"inboundProxyPort": "5143"}), "incoming-proxy-port", json!(5143)),
        (json!({"outboundProxyPort": 5140}), "outgoing-proxy-port", json!(5140)),
        (json!({"proxyAdminPort": 1, "proxyControlPort": 2}), inbound, json!(["1", "2"])),
        (json!({"proxyUID": 1_000_660_000}), "proxy-uid", json!(1_000_660_000)),
        (json!({"proxyUID": "12102"}), "proxy-uid", json!(12102)),
        (json!({"proxyGID": -1}), "proxy-gid", Value::Null),
        (json!({"proxyGID": null}), "proxy-gid", Value::Null),
        (json!({"proxyGID": 0}), "proxy-gid", json!(0)),
        (json!({"proxyGID": "2102"}), "proxy-gid", json!(2102)),
        (json!({"portsToRedirect": "8080,9090"}), "ports-to-redirect", json!([8080, 9090])),
        (json!({"portsToRedirect": " 8080 , 9090,"}), "ports-to-redirect", json!([8080, 9090])),
        (json!({"portsToRedirect": 8080}), "ports-to-redirect", json!([8080])),
        (
            json!({"ignoreInboundPorts": "80,100-200"}),
            inbound,
            json!(["4191", "4190", "80", "100-200"]),
        ),
        (json!({"ignoreInboundPorts": 25}), inbound, json!(["4191", "4190", "25"])),
        (json!({"ignoreInboundPorts": " "}), inbound, json!(["4191", "4190"])),
        (json!({"ignoreOutboundPorts": ""}), outbound, Value::Null),
        (json!({"ignoreOutboundPorts": "443, 1000"}), outbound, json!(["443", " 1000"])),
        (json!({"ignoreOutboundPorts": "443,"}), outbound, json!(["443", ""])),
        (
            json!({"ignoreInboundPorts": "http,80;90,30-20,\"\\,65536-65539"}),
            inbound,
            json!(["4191", "4190", "http", "80;90", "30-20", "\"\\", "65536-65539"]),
        ),
        (json!({"strictAnnotations": true}), "strict-annotations", json!(true)),
        (json!({}), "strict-annotations", Value::Null),
        (json!({"strictProxyUser": true}), "strict-proxy-user", json!(true)),
        (json!({}), "strict-proxy-user", Value::Null),
        (json!({"ignoreOutboundPorts": 443}), outbound, json!(["443"])),
        (json!({"skipSubnets": ""}), "subnets-to-ignore", Value::Null),
        (
            json!({"skipSubnets": "10.0.0.0/8, fd00::/8"}),
            "subnets-to-ignore",
            json!(["10.0.0.0/8", "fd00::/8"]),
        ),
        (json!({"useWaitFlag": true}), "use-wait-flag", json!(true)),
        (json!({"iptablesMode": "legacy"}), "iptables-mode", json!("legacy")),
        (json!({"iptablesMode": "native"}), "iptables-mode", json!("native")),
        (json!({"iptablesMode": null}), "iptables-mode", json!("auto")),
        (json!({"ipv6": "auto"}), "ipv6", json!("auto")),
        (json!({"ipv6": true}), "ipv6", json!(true)),
        (json!({"ipv6": "true"}), "ipv6", json!(true)),
        (json!({"ipv6": false, "disableIPv6": false}), "ipv6", json!(false)),
        (json!({"ipv6": "", "disableIPv6": false}), "ipv6", json!(true)),
        (
            json!({"excludeNamespaces": ["kube-system"]}),
            "exclude-namespaces",
            json!(["kube-system"]),
        ),
        (json!({"excludeNamespaces": []}), "exclude-namespaces", Value::Null),
        (json!({"apiRetrySeconds": "20"}), "api-retry-seconds", json!(20)),
        (json!({"disableIPv6": false}), "ipv6", json!(true)),
        (json!({"disableIPv6": null}), "ipv6", json!(false)),
    ];
    for (values, key, expected) in cases {
        let plugin = with(values.clone()).plugin();
        let found = plugin["linkerd"].get(key).unwrap_or(&Value::Null);
        assert_eq!(found, &expected, "{values}");
    }
    assert_eq!(with(json!({"logLevel": "debug"})).plugin()["log_level"], "debug");
    // Upstream accepts any case, and takes an empty level for its default.
    assert_eq!(with(json!({"logLevel": "Debug"})).plugin()["log_level"], "Debug");
    assert_eq!(with(json!({"logLevel": ""})).plugin()["log_level"], "info");
}

#[test]
fn port_lists_are_text_or_arrays() {
    let arrays = with(json!({
        "portsToRedirect": [8080, "9090"], "ignoreInboundPorts": [22, "8000-8100"],
        "ignoreOutboundPorts": [25],
    }));
    let text = with(json!({
        "portsToRedirect": "8080,9090", "ignoreInboundPorts": "22,8000-8100",
        "ignoreOutboundPorts": "25",
    }));
    assert_eq!(arrays.plugin(), text.plugin());
    assert_eq!(arrays.plugin()["linkerd"]["ports-to-redirect"], json!([8080, 9090]));
    let empty =
        with(json!({"portsToRedirect": [], "ignoreInboundPorts": [], "ignoreOutboundPorts": []}));
    assert_eq!(empty.plugin(), with(json!({})).plugin());
}
