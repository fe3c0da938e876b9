//! The notes that helm prints.

use serde_json::{Value, json};

use crate::helm::{Render, chart, read};
use crate::schema::schema;

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
    let template = read(chart().join("templates/NOTES.txt"));
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
    let root = schema();
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
