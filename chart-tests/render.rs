//! The rendered text and the notes, for each values file in `ci`.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod both_helms;
#[allow(dead_code, reason = "the plugin's tests use all of it")]
#[path = "../src/tests/support/cni.rs"]
mod cni;
#[path = "../src/tests/support/documented.rs"]
mod commands;
mod contract;
mod docs;
mod documented;
mod helm;
mod hook;
mod image;
mod install_cni;
mod lifecycle;
mod monitoring;
mod objects;
mod pages;
mod platforms;
mod plugin;
mod quickstart;
mod schema;
mod security;
mod security_page;
mod tuning;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use helm::{Render, ci_values, with};

#[test]
fn each_values_file_renders_the_recorded_text() {
    insta::glob!("../charts/linkerd2-cni/ci", "*-values.yaml", |values| {
        let rendered = Render::new().file(values).text().unwrap();
        insta::assert_snapshot!(rendered);
    });
}

#[test]
fn each_snapshot_has_a_values_file() {
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("chart-tests/snapshots");
    let of_a_file = fs::read_dir(snapshots)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("@"))
        .count();
    assert_eq!(of_a_file, ci_values().len());
}

#[test]
fn the_notes_have_the_recorded_text() {
    insta::assert_snapshot!(Render::new().notes());
    let values = json!({
        "enablePSP": true, "disableIPv6": false, "iptablesMode": "plain",
        "priorityClassName": "system-node-critical", "destCNIBinDir": "/home/kubernetes/bin",
    });
    insta::assert_snapshot!(Render::new().values(&values).notes());
}

/// Renders the notes of `helm upgrade`, for which Helm needs a cluster.
fn upgrade_notes(values: Value) -> String {
    let template = helm::read(helm::chart().join("templates/NOTES.txt"));
    assert!(template.contains(".Release.IsUpgrade"));
    let template = template.replace(".Release.IsUpgrade", "true");
    Render::new().with_file("templates/NOTES.txt", &template).values(&values).notes()
}

#[test]
fn the_notes_warn_that_ipv6_bypasses_the_proxy() {
    for (values, bypasses) in [
        (json!({}), true),
        (json!({"disableIPv6": false}), false),
        (json!({"ipv6": "auto"}), false),
    ] {
        let notes = Render::new().values(&values).notes();
        assert_eq!(notes.contains("bypasses the proxy"), bypasses, "{values}: {notes}");
    }
}

/// A lookup that RBAC forbids fails the release. The one that is left reads a ConfigMap that the
/// release itself creates.
#[test]
fn no_other_lookup_than_that_of_the_releases_configmap_can_fail_a_release() {
    let lookups: Vec<_> = fs::read_dir(helm::chart().join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| helm::read(path).matches("lookup \"").count())
        .collect();
    assert_eq!(lookups.iter().sum::<usize>(), 1);
}

#[test]
fn the_notes_of_an_install_lead_to_a_control_plane_with_cni() {
    let notes = Render::new().notes();
    let position = |text: &str| notes.find(text).unwrap_or_else(|| panic!("no {text}: {notes}"));
    assert!(position("Gateway API CRDs") < position("linkerd install --crds | kubectl apply"));
    assert!(
        position("linkerd install --crds") < position("linkerd install --linkerd-cni-enabled |")
    );
    position("`cniEnabled=true`");
}

/// The control plane exists already, and its namespace fails `linkerd check --pre`.
#[test]
fn the_notes_of_an_upgrade_install_no_control_plane() {
    let notes = upgrade_notes(json!({}));
    assert!(notes.contains("is upgraded as linkerd-cni"), "{notes}");
    assert!(notes.contains("rollout status"), "{notes}");
    for text in ["linkerd install", "check --pre", "3. ", "keeps upstream's image"] {
        assert!(!notes.contains(text), "{text}: {notes}");
    }
    let notes = upgrade_notes(json!({"adminPort": null}));
    assert!(notes.contains("keeps upstream's image"), "{notes}");
    let remedy = "--reset-then-reuse-values --set image.version= --set image.upstream=false --set adminPort=9991";
    assert!(notes.contains(remedy), "{notes}");
}

/// `kubectl logs daemonset/linkerd-cni` would pick the pod of any node.
#[test]
fn the_notes_lead_to_the_log_of_the_node_that_is_not_ready() {
    for notes in [Render::new().notes(), upgrade_notes(json!({}))] {
        assert!(notes.contains("get pods -l k8s-app=linkerd-cni -o wide"), "{notes}");
        assert!(notes.contains("logs POD -c install-cni"), "{notes}");
        assert!(!notes.contains("logs daemonset"), "{notes}");
        assert!(notes.contains("cni.exclusive=false"), "{notes}");
        assert!(
            notes.contains("linkerd upgrade --set cniEnabled=false | kubectl apply"),
            "{notes}"
        );
    }
}

#[test]
fn the_notes_recommend_repair_with_its_cost_until_it_is_enabled() {
    let recommended = "`repairController.mode=in-place`";
    let notes = Render::new().notes();
    for text in [recommended, "The cost:", "SYS_ADMIN and NET_ADMIN", "memory", "watch"] {
        assert!(notes.contains(text), "{text}: {notes}");
    }
    for values in [json!({"repairController": {"enabled": true}}), json!({"adminPort": null})] {
        let notes = Render::new().values(&values).notes();
        assert!(!notes.contains(recommended), "{notes}");
    }
}

#[test]
fn the_notes_name_the_labels_of_the_alerts_if_no_podmonitor_sets_them() {
    for (rule, monitor, expected) in
        [(true, false, true), (true, true, false), (false, false, false)]
    {
        let values = json!({
            "prometheusRule": {"enabled": rule}, "podMonitor": {"enabled": monitor},
        });
        let notes = Render::new().values(&values).notes();
        assert_eq!(notes.contains("LinkerdCNIAgentAbsent fires"), expected, "{values}: {notes}");
    }
    let values = json!({"prometheusRule": {"enabled": true}, "podMonitor": null});
    assert!(Render::new().values(&values).notes().contains("`podMonitor.enabled=true`"));
}

/// A user with a mirror set in an old value must learn that the default image is pulled.
#[test]
fn the_notes_name_values_of_older_charts_that_have_no_effect() {
    let root = schema::schema();
    let keys = root["properties"].as_object().unwrap().iter();
    let is_old = |of: &Value| {
        let description = of["description"].as_str().unwrap_or_default();
        description.starts_with("Has no effect: a key of older charts.")
    };
    let ignored = keys.filter(|(_, of)| is_old(of));
    let old: serde_json::Map<_, _> = ignored.map(|(key, _)| (key.clone(), json!("x"))).collect();
    assert!(old.len() > 5);
    let notes = Render::new().values(&json!(old)).notes();
    let line = notes.lines().find(|line| line.contains("older charts"));
    for key in old.keys() {
        assert!(line.unwrap().contains(key), "{key}: {notes}");
    }
    assert!(notes.contains("`image.name`"), "{notes}");
    assert!(!Render::new().notes().contains("older charts"));
}

#[test]
fn the_notes_name_ignored_elements_of_port_lists() {
    let lists = json!({"ignoreInboundPorts": "80,http,+90", "ignoreOutboundPorts": "443, 1000,"});
    let notes = Render::new().values(&lists).notes();
    for line in [
        "ignoreInboundPorts: the plugin ignores these invalid elements, as upstream does: \"http\".",
        "ignoreOutboundPorts: the plugin ignores these invalid elements, as upstream does: \" 1000\", \"\".",
    ] {
        assert!(notes.contains(line), "{line}: {notes}");
    }
    let good = json!({"ignoreInboundPorts": "0,22,8000-8100,65535", "ignoreOutboundPorts": " "});
    let notes = Render::new().values(&good).notes();
    assert!(!notes.contains("ignores"), "{notes}");
}

/// `linkerd check --pre` fails if the control plane's namespace exists.
#[test]
fn the_notes_warn_about_the_control_planes_namespace() {
    let notes = |namespace| Render::new().namespace(namespace).notes();
    assert!(notes("linkerd").contains("This check fails"));
    assert!(!notes("linkerd-cni").contains("This check fails"));
}

#[test]
fn rendering_twice_gives_the_same_text() {
    for values in ci_values() {
        let render = Render::new().file(&values);
        assert_eq!(render.text(), render.text(), "{}", values.display());
    }
}

#[test]
fn no_field_is_null() {
    for values in ci_values() {
        let objects = Render::new().file(&values).objects();
        assert_no_null(&values.display().to_string(), &json!(objects.0));
    }
    let nested = json!({
        "image": {"name": null, "version": null, "pullPolicy": null},
        "repairController": {
            "enabled": true, "logLevel": null, "logFormat": null, "enableSecurityContext": null,
            "resources": {"cpu": null, "memory": {"limit": null}, "limits": {"cpu": null}, "requests": null},
        },
        "updateStrategy": {"type": null, "rollingUpdate": {"maxUnavailable": null, "maxSurge": null}},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null},
        "resources": {"cpu": {"limit": null, "request": null}},
        "podLabels": {"a": null}, "commonLabels": {"a": null}, "commonAnnotations": {"a": null},
        "livenessProbe": {"periodSeconds": null}, "serviceAccount": {"annotations": {"a": null}},
    });
    assert_no_null("nested nulls", &json!(with(nested).0));
}

fn assert_no_null(place: &str, value: &Value) {
    match value {
        Value::Null => panic!("{place} is null"),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                assert_no_null(&format!("{place}/{index}"), item);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                assert_no_null(&format!("{place}/{key}"), field);
            }
        }
        _ => {}
    }
}

/// Names of namespaces and classes may look like YAML numbers, booleans (`on` in YAML 1.1, which
/// Kubernetes reads) and nulls.
#[test]
fn a_name_that_looks_like_another_yaml_type_stays_a_string() {
    for name in ["123", "1e3", "0o7", "0x10", "on", "no", "y", "true", "null"] {
        let text = Render::new()
            .namespace(name)
            .file(&helm::chart().join("ci/everything-values.yaml"))
            .values(&json!({
                "priorityClassName": name, "networkAttachmentDefinition": {"namespace": name},
                "podMonitor": {"namespace": name}, "prometheusRule": {"namespace": name},
                "grafanaDashboard": {"namespace": name}, "serviceAccount": {"name": name},
                "image": {
                    "name": name, "repository": "", "registry": "", "tag": "v1", "digest": "",
                },
            }))
            .text()
            .unwrap();
        let quoted = format!("\"{name}\"");
        for key in ["namespace", "priorityClassName", "serviceAccountName", "values"] {
            let prefix = format!("{key}: ");
            let lines = text.lines().filter_map(|l| l.trim().strip_prefix(&prefix));
            let found: Vec<_> = lines.collect();
            assert!(!found.is_empty(), "{key}");
            for value in found {
                assert_eq!(value.trim_matches(['[', ']']), quoted, "{key}");
            }
        }
    }
    // An image name may begin with an indicator of YAML.
    for name in ["&x", "*x", "!x", "[x", "{x", "%x", "`x", "'x", "\"x", "#x"] {
        let objects = with(json!({"image": {"name": name, "version": "v1"}}));
        let image = &objects.container("install-cni")["image"];
        assert_eq!(image, &format!("{name}:v1"));
    }
}

/// Server-side apply merges these lists by name and rejects duplicates.
#[test]
fn names_in_lists_are_unique() {
    for values in ci_values() {
        let objects = Render::new().file(&values).objects();
        let pod = &objects.pod()["spec"];
        assert_distinct(&pod["volumes"], "name");
        assert_distinct(&pod["containers"], "name");
        let mut ports = Vec::new();
        for container in pod["containers"].as_array().unwrap() {
            assert_distinct(&container["env"], "name");
            assert_distinct(&container["volumeMounts"], "mountPath");
            ports.extend(container["ports"].as_array().into_iter().flatten().cloned());
        }
        // The containers of a pod share its ports.
        assert_distinct(&json!(ports), "name");
        assert_distinct(&json!(ports), "containerPort");
    }
}

fn assert_distinct(list: &Value, key: &str) {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, item) in list.iter().enumerate() {
        let twice = list[..index].iter().any(|other| other[key] == item[key]);
        assert!(!twice, "{key} {} is not unique", item[key]);
    }
}

#[test]
fn the_default_surge_gives_way_to_max_unavailable_and_to_upstreams_image() {
    let upstream = json!({"image": {"version": "v1.7.0"}, "adminPort": null});
    for (pace, rendered) in [
        (json!({}), json!({"maxSurge": 1, "maxUnavailable": 0})),
        (json!({"maxUnavailable": 2}), json!({"maxUnavailable": 2})),
        (json!({"maxUnavailable": "25%"}), json!({"maxUnavailable": "25%"})),
        (json!({"maxSurge": "10%"}), json!({"maxSurge": "10%", "maxUnavailable": 0})),
        (
            json!({"maxSurge": 3, "maxUnavailable": null}),
            json!({"maxSurge": 3, "maxUnavailable": 0}),
        ),
        (json!({"maxSurge": null, "maxUnavailable": 1}), json!({"maxUnavailable": 1})),
    ] {
        let mut values = json!({"updateStrategy": {"rollingUpdate": pace}});
        let strategy = with(values.clone()).get("DaemonSet")["spec"]["updateStrategy"].clone();
        assert_eq!(strategy["rollingUpdate"], rendered, "{values}");
        if pace == json!({}) {
            values = upstream.clone();
            let objects = with(values);
            let strategy = &objects.get("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"];
            assert_eq!(*strategy, json!({"maxUnavailable": 1}));
        }
    }
}
