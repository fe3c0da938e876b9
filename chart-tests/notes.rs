//! The notes that helm prints.

use std::fmt::Write as _;

use serde_json::json;

use crate::helm::{Render, chart, read, values};
use crate::records::assert_record;
use crate::schema::keys_without_effect;

/// Returns the lines that only one of the texts has, each with `-` or `+`.
fn changed_lines(default: &str, notes: &str) -> String {
    let mut text = String::new();
    for (sign, lines, other_text) in [('-', default, notes), ('+', notes, default)] {
        for line in lines.lines() {
            if !other_text.lines().any(|other| other == line) {
                let _ = writeln!(text, "{sign} {line}");
            }
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

/// The namespace exists, so `linkerd check --pre` would fail.
#[test]
fn upgrade_notes_check_the_control_plane_instead_of_installing_it() {
    // Helm needs a cluster for an upgrade.
    let template = read(chart().join("templates/NOTES.txt"));
    assert!(template.contains(".Release.IsUpgrade"));
    let template = template.replace(".Release.IsUpgrade", "true");
    let notes = Render::new().with_file("templates/NOTES.txt", &template).notes();
    assert!(notes.contains(" is upgraded as linkerd-cni in namespace linkerd-cni."), "{notes}");
    assert!(notes.contains("linkerd check --cni-namespace linkerd-cni\n"), "{notes}");
    assert!(!notes.contains("--pre") && !notes.contains("linkerd install"), "{notes}");
    let installation_notes = Render::new().notes();
    assert!(installation_notes.contains("linkerd check --pre --linkerd-cni-enabled"));
}

/// `linkerd check --pre` fails if the control plane's namespace exists.
#[test]
fn notes_warn_about_the_control_planes_namespace() {
    let notes = |namespace| Render::new().namespace(namespace).notes();
    assert!(notes("linkerd").contains("install the plugin into another namespace"));
    assert!(!notes("linkerd-cni").contains("another namespace"));
}

/// A user with a mirror set in an old value must learn that the default image is pulled.
#[test]
fn notes_name_values_of_older_charts_that_have_no_effect() {
    let keys = keys_without_effect("Has no effect: a key of older charts.");
    assert!(keys.len() > 5);
    let mut values = json!({});
    for key in &keys {
        values[key] = json!("x");
    }
    let notes = Render::new().values(&values).notes();
    for key in &keys {
        let line = format!("\n{key} is a value of older charts and has no effect");
        assert!(notes.contains(&line), "{key}: {notes}");
    }
    assert!(notes.contains("`image.name`"), "{notes}");
    assert!(!Render::new().notes().contains("older charts"));
}

/// scripts/release writes the digest of the chart's own image into the packaged Chart.yaml.
#[test]
fn released_chart_warns_only_if_the_image_has_no_digest() {
    let own = "cr.l5d.io/linkerd/cni-plugin:v2.0.0";
    let digest = format!("@sha256:{}", "a".repeat(64));
    let released = read(chart().join("Chart.yaml")).replace(own, &format!("{own}{digest}"));
    assert!(released.contains(&digest));
    let unpinned = "The image is not pinned by a digest";
    let by_hand = format!("v1{digest}");
    for (name, given, image, is_pinned) in [
        ("the chart's image", json!({}), own, true),
        (
            "a mirror",
            json!({"global": {"imageRegistry": "a.example"}}),
            "a.example/linkerd/cni-plugin:v2.0.0",
            true,
        ),
        ("another name", json!({"image": {"name": "a.example/b"}}), "a.example/b:v2.0.0", false),
        (
            "another tag",
            json!({"image": {"version": "v3"}}),
            "cr.l5d.io/linkerd/cni-plugin:v3",
            false,
        ),
        (
            "a digest of the user",
            json!({"image": {"name": "a.example/b", "version": by_hand}}),
            "a.example/b:v1",
            true,
        ),
    ] {
        let render = Render::new().with_file("Chart.yaml", &released).values(&given);
        let pin = if is_pinned { &*digest } else { "" };
        let objects = render.objects();
        assert_eq!(objects.container("install-cni")["image"], format!("{image}{pin}"), "{name}");
        assert_eq!(render.notes().contains(unpinned), !is_pinned, "{name}");
    }
    let notes = Render::new().values(&json!({"image": {"name": "a.example/b"}})).notes();
    assert!(!notes.contains(unpinned), "{notes}");
}
