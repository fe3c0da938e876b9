//! Upgrades from upstream's chart, and from one version of this chart to the next.

use serde_json::{Value, json};

use crate::cni::upstream_entry;
use crate::helm::{Objects, Render, chart, read, rejection, with, yaml};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn over_upstreams_values() -> Render {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/chart-tests/values/upstream.yaml");
    Render::new().with_file("values.yaml", &read(path))
}

#[test]
fn upstreams_values_render_upstreams_pod() {
    let objects = over_upstreams_values().objects();
    let agent = objects.container("install-cni");
    assert_eq!(agent["image"], "cr.l5d.io/linkerd/cni-plugin:v1.7.0-alpha.1");
    // Upstream's agent has no admin port, so with a probe it would never get ready.
    assert!(agent.get("readinessProbe").is_none());
    assert!(agent.get("livenessProbe").is_none());
    // Upstream's agent has no use for this project's variables, capabilities and keys.
    let names = agent["env"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|variable| &variable["name"]).collect();
    assert_eq!(
        names,
        [
            "DEST_CNI_NET_DIR",
            "DEST_CNI_BIN_DIR",
            "CNI_NETWORK_CONFIG",
            "SLEEP",
            "LINKERD_CNI_LOG_LEVEL"
        ]
    );
    assert_eq!(agent["securityContext"]["capabilities"]["add"], json!(["DAC_OVERRIDE", "CHOWN"]));
    assert_eq!(objects.plugin(), upstream_entry());
}

/// Upstream's image would reject these values.
#[test]
fn upstreams_image_gets_only_settings_that_it_accepts() {
    let objects = with(json!({
        "adminPort": null, "iptablesMode": "native", "ipv6": "auto", "disableIPv6": false,
        "excludeNamespaces": ["a"], "repairController": {"enabled": true, "auditIntervalSeconds": 5},
    }));
    let plugin = objects.plugin();
    assert_eq!(plugin["linkerd"]["iptables-mode"], "nft");
    assert_eq!(plugin["linkerd"]["ipv6"], true);
    assert!(plugin["linkerd"].get("exclude-namespaces").is_none());
    assert!(plugin.get("capabilities").is_none());
    let repair = objects.container("repair-controller");
    assert_eq!(repair["env"].as_array().unwrap().len(), 2);
    assert!(repair.get("volumeMounts").is_none());
}

/// `helm upgrade --reset-then-reuse-values` keeps an `image.version` that a user of upstream's chart
/// has set, and adds this chart's `adminPort`. Upstream's agent would never get ready then.
#[test]
fn a_go_image_with_probes_is_rejected_with_the_remedy() {
    for version in ["v1.7.0-alpha.1", "v1.6.5", "1.6.5", "v1.10.0", &format!("v1.6.5@{DIGEST}")] {
        let error = rejection(&json!({"image": {"version": version}}));
        for part in [
            &format!("image.version: {version} is upstream's image"),
            "image.version=\"\" for this chart's image",
            "image.upstream=true",
        ] {
            assert!(error.contains(part), "{version}: {error}");
        }
        // The remedies. `--set image.version=` replaces a version that the release has.
        with(json!({"image": {"version": ""}, "adminPort": 9991}));
        with(json!({"image": {"version": version, "upstream": true}}));
        with(json!({"image": {"version": version}, "adminPort": null}));
    }
    for version in ["", "v2.0.0", "v11.0.0", "v2.1.0-rc.1", "edge", "main-1.6.5", "20261201"] {
        with(json!({"image": {"version": version}}));
    }
    let set = json!({"image": {"version": "v1.6.5"}});
    over_upstreams_values().values(&set).objects();
}

#[test]
fn program_image_and_chart_sort_above_all_of_upstreams() {
    let metadata = yaml(&read(chart().join("Chart.yaml")));
    let major = |version: &Value| -> u32 {
        let version = version.as_str().unwrap().trim_start_matches('v');
        version.split('.').next().unwrap().parse().unwrap()
    };
    assert!(major(&metadata["appVersion"]) >= 2);
    // Upstream's charts have versions such as 2026.8.3.
    assert!(major(&metadata["version"]) >= 2026);
}

#[test]
fn upstreams_repair_controller_keeps_its_permissions() {
    let values = json!({"repairController": {"enabled": true}});
    let objects = over_upstreams_values().values(&values).objects();
    let rules = objects.named("ClusterRole", "linkerd-cni-repair")["rules"].to_string();
    for verb in ["list", "watch", "delete"] {
        assert!(rules.contains(verb), "{verb}: {rules}");
    }
}

#[test]
fn upstreams_values_render_also_if_one_is_missing() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/chart-tests/values/upstream.yaml");
    let Value::Object(values) = yaml(&read(path)) else { panic!("not a map") };
    for key in values.keys() {
        let mut fewer = values.clone();
        fewer.remove(key);
        let render = Render::new().with_file("values.yaml", &Value::Object(fewer).to_string());
        render.text().unwrap_or_else(|error| panic!("without {key}: {error}"));
    }
    Render::new().with_file("values.yaml", "{}").text().unwrap();
}

/// `--reuse-values` puts the values of the old release in place of the defaults.
/// `--reset-then-reuse-values` puts those that the user had set over the new defaults.
#[test]
fn values_of_an_older_chart_render_the_same_plugin() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/chart-tests/values/former.yaml");
    let reused = Render::new().with_file("values.yaml", &read(path)).objects();
    assert_eq!(reused.plugin(), with(json!({})).plugin());
    let user = Render::new().values(&yaml(&read(path))).objects();
    assert_eq!(user.0, with(json!({})).0);
    assert_eq!(reused.pod(), user.pod());

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/chart-tests/values/upstream.yaml");
    let mut values = yaml(&read(path));
    values["image"]["version"] = json!("");
    let user = with(values.clone());
    assert_eq!(user.plugin()["linkerd"]["iptables-mode"], "nft");
    assert!(user.container("install-cni").get("readinessProbe").is_some());
    values["image"] = json!({"version": "v1.7.0-alpha.1", "upstream": true});
    assert!(with(values).container("install-cni").get("readinessProbe").is_none());
}

#[test]
fn keys_of_older_charts_have_no_effect() {
    let legacy = json!({
        "global": {"a": 1}, "enabled": true, "partials": {"global": {}}, "namespace": "x",
        "installNamespace": true, "enablePSP": true, "linkerdVersion": "edge-1",
        "cniPluginImage": "x", "cniPluginVersion": "x", "cniResourceLabel": "x",
        "createdByAnnotation": "x", "repairController": {"image": {"name": "x"}},
    });
    assert_eq!(with(legacy).0, with(json!({})).0);
}

#[test]
fn pods_are_replaced_for_a_new_configuration_only() {
    let default = with(json!({}));
    for values in [
        json!({"logLevel": "debug"}),
        json!({"proxyGID": 0}),
        json!({"destCNIBinDir": "/x"}),
        json!({"skipSubnets": "10.0.0.0/8"}),
    ] {
        let changed = with(values.clone());
        assert_ne!(changed.checksum(), default.checksum(), "{values}");
    }
    for values in [
        json!({"priorityClassName": "x"}),
        json!({"commonLabels": {"a": "b"}}),
        json!({"revisionHistoryLimit": 3}),
    ] {
        let changed = with(values.clone());
        assert_eq!(changed.checksum(), default.checksum(), "{values}");
    }
    // Other values must not change the pod template either.
    let labelled = with(json!({"commonLabels": {"a": "b"}, "revisionHistoryLimit": 3}));
    assert_eq!(labelled.pod(), default.pod());
}

#[test]
fn a_new_chart_version_with_the_same_image_does_not_replace_pods() {
    let bumped = |from: &str, to: &str, values: Value| -> Objects {
        let metadata = read(chart().join("Chart.yaml"));
        assert!(metadata.contains(from), "{from}");
        let changed = metadata.replace(from, to);
        Render::new().with_file("Chart.yaml", &changed).values(&values).objects()
    };
    let next = bumped("\nversion: ", "\nversion: 9", json!({}));
    assert_eq!(next.pod(), with(json!({})).pod());
    assert_ne!(next.0, with(json!({})).0, "no object has the chart's version");

    let pinned = json!({"image": {"version": "v2.0.0-alpha.1"}});
    let next = bumped("appVersion: \"v", "appVersion: \"v9", pinned.clone());
    assert_eq!(next.pod(), with(pinned).pod());
}

/// Renders a Helm upgrade in a cluster that has this ConfigMap `linkerd-cni-config`.
fn over_config_map(live: Value, values: Value) -> Objects {
    let template = read(chart().join("templates/_agent.tpl"));
    let lookup = r#"lookup "v1" "ConfigMap" .Release.Namespace "linkerd-cni-config""#;
    assert!(template.contains(lookup), "the lookup has changed");
    let template = template.replace(lookup, r#".Files.Get "live.json" | fromJson"#);
    Render::new()
        .with_file("templates/_agent.tpl", &template)
        .with_file("live.json", &live.to_string())
        .values(&values)
        .objects()
}

const BIN_DIR_IN_USE: &str = "linkerd.io/cni-bin-dir-in-use";

fn upstreams_config_map(bin_dir: &str) -> Value {
    json!({"metadata": {}, "data": {"dest_cni_bin_dir": bin_dir, "cni_network_config": "{}"}})
}

/// The ConfigMap of an earlier upgrade from upstream.
fn annotated_config_map(bin_dir: &str) -> Value {
    json!({
        "metadata": {"annotations": {BIN_DIR_IN_USE: bin_dir}},
        "data": {"dest_cni_bin_dir": bin_dir, "cni_network_config": "{\"pod-detection\": \"api\"}"},
    })
}

#[test]
fn an_upgrade_in_upstreams_bin_dir_does_not_require_network_plugins() {
    let dirs = ["/opt/cni/bin", "/opt/cni/bin/"];
    for (live, now) in
        [(dirs[0], dirs[0]), (dirs[0], dirs[1]), (dirs[1], dirs[0]), (dirs[1], dirs[1])]
    {
        for config_map in [upstreams_config_map(live), annotated_config_map(live)] {
            let objects = over_config_map(config_map.clone(), json!({"destCNIBinDir": now}));
            let required = objects.variable("install-cni", "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS");
            assert_eq!(required, "false", "{now} after {config_map}");
            // For the next upgrade, which finds this chart's ConfigMap.
            let annotations = &objects.get("ConfigMap")["metadata"]["annotations"];
            assert_eq!(annotations[BIN_DIR_IN_USE], now, "{config_map}");
        }
    }
}

#[test]
fn other_config_maps_keep_the_requirement_of_network_plugins() {
    let without_annotation = json!({"metadata": {}, "data": {
        "dest_cni_bin_dir": "/opt/cni/bin", "cni_network_config": "{\"pod-detection\": \"api\"}",
    }});
    for config_map in [
        json!({}),
        json!({"metadata": {}}),
        json!({"metadata": {"annotations": null}, "data": null}),
        json!({"metadata": {}, "data": {"dest_cni_bin_dir": "/opt/cni/bin"}}),
        json!({"metadata": {}, "data": {"cni_network_config": "{}"}}),
        upstreams_config_map("/elsewhere"),
        annotated_config_map("/elsewhere"),
        without_annotation,
    ] {
        let objects = over_config_map(config_map.clone(), json!({}));
        let required = objects.variable("install-cni", "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS");
        assert_eq!(required, "true", "{config_map}");
        let annotations = objects.get("ConfigMap")["metadata"].get("annotations");
        assert_eq!(annotations, None, "{config_map}");
    }
}
