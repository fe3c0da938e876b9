use serde_json::{Value, json};

use super::*;
use crate::extension::fake::{CONFIG, Cluster, entry};

const POD: &str = "/api/v1/namespaces/shop/pods/web";

/// A cluster with the pod shop/web on node-1.
fn cluster(pod: Value) -> Cluster {
    let mut cluster = Cluster::healthy();
    cluster.put(POD, pod);
    cluster.put("/api/v1/namespaces/shop", json!({"kind": "Namespace", "metadata": {}}));
    cluster
}

fn meshed() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "annotations": {
            "linkerd.io/proxy-version": "edge-26.1.1",
            "config.linkerd.io/skip-outbound-ports": "3306,http,8000-8010",
            "config.linkerd.io/skip-subnets": "10.2.0.0/16",
        }},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "app"}, {"name": "linkerd-proxy"}],
        },
        "status": {"podIPs": [{"ip": "10.1.0.7"}]},
    })
}

fn explained(cluster: &Cluster) -> String {
    explain(cluster, "linkerd-cni", "shop", "web").unwrap()
}

#[test]
fn a_meshed_pod_is_explained_with_its_connections_and_rules() {
    insta::assert_snapshot!(explained(&cluster(meshed())));
}

#[test]
fn the_rules_of_both_families_are_shown() {
    let mut cluster = cluster(meshed());
    let mut entry = entry();
    entry["linkerd"]["ipv6"] = json!("auto");
    cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
    let text = explained(&cluster);
    assert!(text.contains("IPv6:      yes (ipv6: auto"), "{text}");
    let redirect = "-A PROXY_INIT_OUTPUT -p tcp -m comment --comment";
    assert_eq!(text.matches(redirect).count(), 2, "{text}");
}

#[test]
fn pods_that_are_not_redirected_are_explained_in_the_plugins_words() {
    let cases = [
        ("/spec/hostNetwork", json!(true), "spec.hostNetwork is true"),
        ("/spec/containers", json!([{"name": "app"}]), "skipped: no linkerd-proxy container"),
        (
            "/spec/initContainers",
            json!([{"name": "linkerd-init"}]),
            "skipped: linkerd-init container",
        ),
        (
            "/metadata/annotations",
            json!({"linkerd.io/proxy-version": "x", "config.linkerd.io/skip-subnets": "10.0.0.0"}),
            "the plugin fails, and the pod cannot start",
        ),
    ];
    for (pointer, value, wanted) in cases {
        let mut cluster = cluster(meshed());
        cluster.set(POD, pointer, value);
        let text = explained(&cluster);
        assert!(text.contains(wanted), "{wanted}: {text}");
        assert!(!text.contains("-A PROXY_INIT"), "{text}");
    }
}

#[test]
fn the_bypass_of_a_container_with_the_proxys_user_and_of_ipv6_is_named() {
    let mut entry = entry();
    entry["linkerd"]["ipv6"] = json!("auto");
    let mut cluster = cluster(meshed());
    cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
    let mut spec = meshed()["spec"].clone();
    spec["securityContext"] = json!({"runAsUser": 2102});
    spec["containers"][1]["env"] =
        json!([{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"}]);
    cluster.set(POD, "/spec", spec);
    cluster.set(POD, "/status/podIPs", json!([{"ip": "10.1.0.7"}, {"ip": "fd00::7"}]));
    let text = explained(&cluster);
    for line in [
        "Bypass:    proxy-user app\n",
        "Bypass:    ipv6 the proxy listens on IPv4 only\n",
        "Bypass:    skip-outbound-ports 3306, 8000-8010 (pod: config.linkerd.io/skip-outbound-ports)\n",
        "IPv6:      no (ipv6: auto, and the proxy listens on IPv4 only)\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    entry["linkerd"]["strict-proxy-user"] = json!(true);
    cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
    let text = explained(&cluster);
    assert!(text.contains("would bypass the proxy: app (code 111)"), "{text}");
}

#[test]
fn a_proxy_that_no_annotation_shows_is_explained_with_what_happens_without_an_agent() {
    let mut cluster = cluster(meshed());
    assert!(!explained(&cluster).contains("Note:"));
    cluster.set(POD, "/metadata/annotations", json!({}));
    let text = explained(&cluster);
    assert!(text.contains("Decision:  redirected to the proxy"), "{text}");
    assert!(text.contains("skips the pod while no agent runs on its node\n"), "{text}");
    cluster.set(POD, "/spec/containers", json!([{"name": "app"}]));
    assert!(!explained(&cluster).contains("Note:"));
}

#[test]
fn a_pod_whose_sandbox_ignores_the_rules_is_explained_with_the_error_of_its_start() {
    let mut cluster = cluster(meshed());
    cluster.set(POD, "/spec/runtimeClassName", json!("gvisor"));
    let text = explained(&cluster);
    assert!(text.contains("RuntimeClass gvisor ignore redirect rules"), "{text}");
    assert!(text.contains("(code 112)") && text.contains("linkerd-init"), "{text}");
}

#[test]
fn a_missing_pod_or_chart_is_named_with_the_remedy() {
    let error = explain(&Cluster::healthy(), "linkerd-cni", "shop", "web").unwrap_err();
    assert_eq!(error, "pod shop/web does not exist; name its namespace with --namespace");
    let error = explain(&Cluster::healthy(), "linkerd-cni", "shop/../x", "web").unwrap_err();
    assert_eq!(error, "\"shop/../x\" is not the name of a pod or namespace");
    let error = explain(&cluster(meshed()), "elsewhere", "shop", "web").unwrap_err();
    assert!(error.contains("elsewhere/linkerd-cni-config does not exist"), "{error}");
}
