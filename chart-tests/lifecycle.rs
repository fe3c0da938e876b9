//! Upgrades from upstream's chart, and from one version of this chart to the next.

use serde_json::{Value, json};

use crate::helm::{Objects, Render, chart, read, render, yaml};

fn upstreams_values() -> Value {
    yaml(&read(testkit::repository().join("chart-tests/values/upstream.yaml")))
}

/// Renders the chart with these values in place of its defaults.
fn with_defaults(values: &Value) -> Render {
    Render::new().with_file("values.yaml", &values.to_string())
}

#[test]
fn versions_of_image_and_chart_are_above_upstreams() {
    let metadata = yaml(&read(chart().join("Chart.yaml")));
    let numbers = |key: &str| -> Vec<u32> {
        let version = metadata[key].as_str().unwrap().trim_start_matches('v');
        version.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
    };
    assert!(numbers("appVersion") >= vec![2]);
    // Upstream's newest chart when this was written.
    assert!(numbers("version") > vec![2026, 8, 3]);
}

/// `--reuse-values` puts the old values in place of the defaults. `--reset-then-reuse-values` keeps
/// the new defaults, and adds the user's values.
#[test]
fn values_of_upstreams_chart_render_this_charts_pods() {
    let mut upstream = upstreams_values();
    let error = with_defaults(&upstream).text().unwrap_err();
    assert!(error.contains("image.version: v1.7.0-alpha.1 is upstream's image"), "{error}");
    upstream["image"]["version"] = json!("");
    let reused = with_defaults(&upstream).objects();
    let reset = render(upstream.clone());
    assert_eq!((reused.plugin(), reused.pod()), (reset.plugin(), reset.pod()));
    for objects in [reused, reset] {
        // Upstream's chart sets this value, so that Helm cannot tell the value from one of the
        // user.
        assert_eq!(objects.plugin()["linkerd"]["iptables-mode"], "nft");
        let agent = objects.container("install-cni");
        assert_eq!(agent["ports"][0]["containerPort"], 9991);
        assert!(agent.get("readinessProbe").is_some());
    }
    // docs/migration.md: with `--reuse-values`, these two close the gap.
    let surge = json!({"maxSurge": "10%", "maxUnavailable": 0});
    upstream["updateStrategy"] = json!({"rollingUpdate": surge});
    assert_eq!(
        with_defaults(&upstream).objects().get("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"],
        surge
    );
}

#[test]
fn upstreams_values_render_if_one_of_them_is_missing() {
    let Value::Object(mut upstream) = upstreams_values() else { panic!("not a map") };
    upstream["image"]["version"] = json!("");
    for key in upstream.keys() {
        let mut fewer = upstream.clone();
        fewer.remove(key);
        let rendered = with_defaults(&Value::Object(fewer)).text();
        rendered.unwrap_or_else(|error| panic!("without {key}: {error}"));
    }
    with_defaults(&json!({})).text().unwrap();
}

#[test]
fn new_chart_version_with_the_same_image_does_not_replace_pods() {
    let render_changed = |from: &str, to: &str, values: Value| -> Objects {
        let metadata = read(chart().join("Chart.yaml"));
        assert!(metadata.contains(from), "{from}");
        let changed_metadata = metadata.replace(from, to);
        Render::new().with_file("Chart.yaml", &changed_metadata).values(&values).objects()
    };
    let next = render_changed("\nversion: ", "\nversion: 9", json!({}));
    assert_eq!(next.pod(), render(json!({})).pod());
    assert_ne!(next.0, render(json!({})).0, "no object has the chart's version");

    let pinned = json!({"image": {"version": "v2.0.0-alpha.1"}});
    let next = render_changed("appVersion: \"v", "appVersion: \"v9", pinned.clone());
    assert_eq!(next.pod(), render(pinned).pod());
}
