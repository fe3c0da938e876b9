//! The image.

use serde_json::json;

use crate::helm::with;

#[test]
fn the_image_is_composed_of_name_registry_version_and_digest() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    for (values, expected) in [
        (json!({"name": "a/b/c", "version": "v1"}), "a/b/c:v1".into()),
        (json!({"repository": "a/b/c", "tag": "v1"}), "a/b/c:v1".into()),
        (json!({"name": "a/b", "digest": digest}), format!("a/b:{version}@{digest}")),
        (json!({"name": "a/b", "version": format!("v1@{digest}")}), format!("a/b:v1@{digest}")),
        (json!({"tag": format!("v1@{digest}"), "name": "a/b"}), format!("a/b:v1@{digest}")),
    ] {
        let objects = with(json!({"image": values, "repairController": {"enabled": true}}));
        for container in ["install-cni", "repair-controller"] {
            assert_eq!(objects.container(container)["image"], expected, "{values}");
        }
    }
}

#[test]
fn the_registry_replaces_the_registry_of_the_image_and_keeps_its_path() {
    let default = "cr.l5d.io/linkerd/cni-plugin";
    for (registry, name, expected) in [
        ("example.com", default, "example.com/linkerd/cni-plugin"),
        ("example.com:5000/proxy", default, "example.com:5000/proxy/linkerd/cni-plugin"),
        // A path with which the registry ends is not repeated.
        ("example.com/linkerd", default, "example.com/linkerd/cni-plugin"),
        ("example.com/a/b", "cr.l5d.io/a/b/c", "example.com/a/b/c"),
        ("example.com", "localhost/a", "example.com/a"),
        ("example.com", "localhost:5000/a/b", "example.com/a/b"),
        // These names have no registry.
        ("example.com", "a/b", "example.com/a/b"),
        ("example.com", "a", "example.com/a"),
    ] {
        for key in ["name", "repository"] {
            let objects = with(json!({"image": {"registry": registry, key: name, "tag": "v1"}}));
            let image = &objects.container("install-cni")["image"];
            assert_eq!(*image, format!("{expected}:v1"), "{registry} {key} {name}");
        }
    }
}
