//! Upgrades from upstream's chart, and from one version of this chart to the next.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cni::upstream_entry;
use crate::helm::{Objects, Render, chart, read, values, with, yaml};
use crate::notes::changed_lines;
use crate::records::assert_record;

fn values_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chart-tests/values").join(name)
}

fn upstreams_values() -> Value {
    yaml(&read(values_file("upstream.yaml")))
}

fn over_values(values: &Value) -> Render {
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

/// `--reuse-values` puts old values in place of the defaults, `--reset-then-reuse-values` the user's over the new ones.
#[test]
fn values_of_an_older_chart_render_this_charts_pods() {
    let former = yaml(&read(values_file("former.yaml")));
    let reused = over_values(&former).objects();
    let user = with(former);
    // These defaults have changed since.
    let old = json!({"repairController": {"enabled": false}, "priorityClassName": ""});
    assert_eq!(user.0, with(old).0);
    assert_eq!((reused.plugin(), reused.pod()), (user.plugin(), user.pod()));

    let mut upstream = upstreams_values();
    let error = over_values(&upstream).text().unwrap_err();
    assert!(error.contains("image.version: v1.7.0-alpha.1 is upstream's image"), "{error}");
    upstream["image"]["version"] = json!("");
    for objects in [over_values(&upstream).objects(), with(upstream.clone())] {
        // Set by upstream's chart, so that Helm cannot tell it from a value of the user.
        assert_eq!(objects.plugin()["linkerd"]["iptables-mode"], "nft");
        let agent = objects.container("install-cni");
        assert_eq!(agent["ports"][0]["containerPort"], 9991);
        assert!(agent.get("readinessProbe").is_some());
    }
    // docs/migration.md: with `--reuse-values`, these two close the gap.
    let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
    upstream["updateStrategy"] = json!({"rollingUpdate": surge});
    assert_eq!(
        over_values(&upstream).objects().get("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"],
        surge
    );
}

#[test]
fn upstreams_values_render_also_if_one_is_missing() {
    let Value::Object(mut upstream) = upstreams_values() else { panic!("not a map") };
    upstream["image"]["version"] = json!("");
    for key in upstream.keys() {
        let mut fewer = upstream.clone();
        fewer.remove(key);
        let rendered = over_values(&Value::Object(fewer)).text();
        rendered.unwrap_or_else(|error| panic!("without {key}: {error}"));
    }
    over_values(&json!({})).text().unwrap();
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

/// A row is the live ConfigMap and the values of the upgrade. The outcome has the changes to the notes of an upgrade
/// that changes nothing, which has those to an installation's: the namespace exists, `linkerd check --pre` fails. Only
/// an upgrade in upstream's bin dir does not require network plugins, nor does the next one.
#[test]
fn each_upgrade_has_the_recorded_notes_and_required_plugins() {
    let replaced = |template: &str, from: &str, to: &str| {
        let text = read(chart().join(template));
        assert!(text.contains(from), "{template} lacks {from}");
        text.replace(from, to)
    };
    // Helm needs a cluster for an upgrade, and for a lookup.
    let notes = replaced("templates/NOTES.txt", ".Release.IsUpgrade", "true");
    let lookup = r#"lookup "v1" "ConfigMap" .Release.Namespace "linkerd-cni-config""#;
    let agent = replaced("templates/_agent.tpl", lookup, r#".Files.Get "live.json" | fromJson"#);
    let upgrade = |live: &str, row: &str| {
        Render::new()
            .with_file("templates/NOTES.txt", &notes)
            .with_file("templates/_agent.tpl", &agent)
            .with_file("live.json", live)
            .values(&values(row))
    };
    let default = with(json!({}));
    let own = default.get("ConfigMap").to_string();
    let unchanged = upgrade(&own, "").notes();
    assert_record("upgrades", |row| {
        let row = row.replace("UPSTREAM", &format!("'{}'", upstream_entry()));
        let row = row.replace("CHART", &format!("'{}'", default.plugin()));
        let (live, changed) = row.split_once(" | ").unwrap_or((&row, ""));
        let (live, base) = match live {
            "unchanged" => (own.clone(), Render::new().notes()),
            "none" => ("{}".to_owned(), unchanged.clone()),
            live => (values(live).to_string(), unchanged.clone()),
        };
        let render = upgrade(&live, changed);
        let objects = render.objects();
        let required = objects.variable("install-cni", "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS");
        let annotations = &objects.get("ConfigMap")["metadata"]["annotations"];
        let kept = &annotations["linkerd.io/cni-bin-dir-in-use"];
        let lines = changed_lines(&base, &render.notes());
        format!("network plugins required: {required}, bin dir in use: {kept}\n{lines}")
    });
}
