use serde::Deserialize;
use serde_json::{Map, Value, json};

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
    testkit::chart::yaml(include_str!("tests/pod.yaml"))
}

fn explained(cluster: &Cluster) -> String {
    explain(cluster, "linkerd-cni", "shop", "web").unwrap()
}

/// A row of `pods.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodRow {
    /// Changes of the meshed pod, by JSON pointer.
    #[serde(default)]
    pod: Map<String, Value>,
    /// Members of the plugin entry's `linkerd`.
    #[serde(default)]
    entry: Map<String, Value>,
}

#[test]
fn explain_shows_the_rules_or_why_there_are_none() {
    let mut text = String::new();
    for (name, row) in testkit::table::rows::<PodRow>(include_str!("tests/pods.yaml")) {
        let mut cluster = cluster(meshed());
        for (pointer, value) in row.pod {
            cluster.set(POD, &pointer, value);
        }
        let mut entry = entry();
        for (key, value) in row.entry {
            entry["linkerd"][key] = value;
        }
        cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
        text += &format!("## {name}\n{}\n", explained(&cluster));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_missing_pod_or_chart_is_named_with_the_remedy() {
    let error = explain(&Cluster::healthy(), "linkerd-cni", "shop", "web").unwrap_err().text;
    assert_eq!(error, "pod shop/web does not exist; name its namespace with --namespace");
    let error = explain(&Cluster::healthy(), "linkerd-cni", "shop/../x", "web").unwrap_err().text;
    assert_eq!(error, "\"shop/../x\" is not the name of a pod or namespace");
    let error = explain(&cluster(meshed()), "elsewhere", "shop", "web").unwrap_err().text;
    assert!(error.contains("elsewhere/linkerd-cni-config does not exist"), "{error}");
}
