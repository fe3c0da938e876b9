//! The notes that helm prints.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cni::upstream_entry;
use crate::helm::{Render, chart, read, values, with};
use crate::lifecycle::over_config_map;
use crate::records::assert_record;
use crate::schema::schema;

/// Returns the lines that `notes` has beside those of `default` (`+`), and those that it lacks (`-`).
fn changed_lines(default: &str, notes: &str) -> String {
    let mut text = String::new();
    for (sign, lines, others) in [('-', default, notes), ('+', notes, default)] {
        for line in lines.lines().filter(|line| !others.lines().any(|other| other == *line)) {
            let _ = writeln!(text, "{sign} {line}");
        }
    }
    text
}

#[test]
fn the_notes_have_the_recorded_text() {
    insta::assert_snapshot!(Render::new().notes());
}

#[test]
fn each_value_changes_the_recorded_lines_of_the_notes() {
    let default = Render::new().notes();
    assert_record("notes", |row| {
        let changed = changed_lines(&default, &Render::new().values(&values(row)).notes());
        if changed.is_empty() { "nothing".to_owned() } else { changed }
    });
}

/// The control plane exists already, and its namespace fails `linkerd check --pre`.
#[test]
fn the_notes_of_an_upgrade_name_what_changed_and_install_no_control_plane() {
    // Helm needs a cluster for an upgrade.
    let template = read(chart().join("templates/NOTES.txt"));
    assert!(template.contains(".Release.IsUpgrade"));
    let template = template.replace(".Release.IsUpgrade", "true");
    let upgrade = |live: Value, row: &str| {
        let render = over_config_map(live).with_file("templates/NOTES.txt", &template);
        render.values(&values(row)).notes()
    };
    let own = with(json!({})).get("ConfigMap").clone();
    let mut upstream = json!({"metadata": {"labels": {}}});
    let entry = upstream_entry().to_string();
    upstream["data"] = json!({"dest_cni_net_dir": "/etc/cni/net.d", "dest_cni_bin_dir": "/opt/cni/bin", "cni_network_config": entry});
    let mut text = changed_lines(&Render::new().notes(), &upgrade(own.clone(), ""));
    let unchanged = upgrade(own.clone(), "");
    for (what, live, row) in [
        ("values", &own, "destCNINetDir: /x, ignoreInboundPorts: [22], proxyGID: 0"),
        ("upstream's chart", &upstream, ""),
    ] {
        let notes = upgrade(live.clone(), row);
        let _ = writeln!(text, "{what}\n{}", changed_lines(&unchanged, &notes));
    }
    insta::assert_snapshot!(text);
}

/// `linkerd check --pre` fails if the control plane's namespace exists.
#[test]
fn the_notes_warn_about_the_control_planes_namespace() {
    let notes = |namespace| Render::new().namespace(namespace).notes();
    assert!(notes("linkerd").contains("The namespace linkerd is the control plane's"));
    assert!(!notes("linkerd-cni").contains("The namespace linkerd"));
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
