//! The presets of `platform`.

use serde_json::{Value, json};

use crate::helm::{Render, chart, files, platforms, read, with};
use crate::schema::schema;

#[test]
fn a_platform_name_renders_the_same_as_its_values_file() {
    for (name, file) in platforms() {
        let by_file = Render::new().file(&file).objects();
        assert_eq!(with(json!({"platform": name})).0, by_file.0, "{name}");
    }
}

/// With `--reuse-values` the defaults of an older chart look like values of the user.
#[test]
fn the_platform_wins_over_the_defaults_of_an_older_chart() {
    for values in ["upstream.yaml", "former.yaml"] {
        let path = format!("{}/chart-tests/values/{values}", env!("CARGO_MANIFEST_DIR"));
        let older = |platform: &str| {
            let render = Render::new().with_file("values.yaml", &read(&path));
            render.values(&json!({"platform": platform, "image": {"version": ""}})).objects()
        };
        let data = older("k3s").get("ConfigMap")["data"].clone();
        assert_eq!(data["dest_cni_bin_dir"], "/var/lib/rancher/k3s/data/cni", "{values}");
        assert!(older("gke").have("ResourceQuota"), "{values}");
        assert!(older("openshift").have("NetworkAttachmentDefinition"), "{values}");
    }
}

#[test]
fn schema_and_readme_name_every_platform() {
    let enumerated = schema()["properties"]["platform"]["enum"].clone();
    let readme = read(chart().join("README.md"));
    let mut names = vec![json!("")];
    for (name, _) in platforms() {
        assert!(readme.contains(&format!("| `{name}` |")), "no row for {name}");
        names.push(json!(name));
    }
    names.push(Value::Null);
    assert_eq!(enumerated, json!(names));
}

/// A mount follows the link `current` only once. The parent of the link contains volumes of pods, so that unmounts
/// on the node must reach the containers.
#[test]
fn the_parent_of_a_snaps_link_is_mounted_once_in_each_container() {
    let repair = json!({"enabled": true, "mode": "in-place"});
    let microk8s = with(json!({"platform": "microk8s", "repairController": repair}));
    for container in ["install-cni", "repair-controller"] {
        let mounts = microk8s.container(container)["volumeMounts"].as_array().unwrap();
        let path = |mount: &&Value| mount["mountPath"].as_str().unwrap().contains("/snap/");
        let below: Vec<&Value> = mounts.iter().filter(path).collect();
        assert_eq!(below.len(), 1, "{container}: {below:?}");
        assert_eq!(below[0]["mountPath"], "/host/var/snap/microk8s");
        assert_eq!(below[0]["mountPropagation"], "HostToContainer");
    }
    for (dir, mounted) in [
        ("/var/snap/other/current/cni/bin", "/var/snap/other"),
        ("/var/snap/other/current", "/var/snap/other"),
        ("/var/snap/other/common/bin", "/var/snap/other/common/bin"),
        ("/var/snap/other/currently", "/var/snap/other/currently"),
    ] {
        let objects = with(json!({"destCNIBinDir": dir}));
        let volumes = objects.pod()["spec"]["volumes"].as_array().unwrap();
        assert_eq!(volumes[0]["hostPath"]["path"], mounted, "{dir}");
        assert_eq!(volumes[1]["hostPath"]["path"], "/etc/cni/net.d");
    }
}

/// The rendering order is undefined, so each template applies the platform.
#[test]
fn every_template_begins_with_the_platform() {
    for path in files(&chart().join("templates")) {
        let text = read(&path);
        if path.extension().is_some_and(|kind| kind != "tpl") {
            let first = "{{- include \"linkerd-cni.platform\" . -}}\n";
            assert!(text.starts_with(first), "{}", path.display());
        }
    }
}
