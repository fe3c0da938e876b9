//! The presets of `platform`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::helm::{Objects, Render, chart, files, platforms, read, with};
use crate::schema::schema;

/// Lists the differences between two renders, one line per place.
fn difference(place: &str, from: &Value, to: &Value, into: &mut Vec<String>) {
    match (from, to) {
        _ if from == to => {}
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(key).cloned().unwrap_or(Value::Null)
                };
                difference(&format!("{place}/{key}"), &of(a), &of(b), into);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (from, to)) in a.iter().zip(b).enumerate() {
                difference(&format!("{place}/{index}"), from, to, into);
            }
        }
        _ => into.push(format!("{place}: {to}")),
    }
}

/// The objects by kind and name.
fn by_name(objects: &Objects) -> Value {
    let mut all = json!({});
    for object in &objects.0 {
        let name = object["metadata"]["name"].as_str().unwrap();
        all[format!("{} {name}", object["kind"].as_str().unwrap())] = object.clone();
    }
    // The checksum changes with the ConfigMap.
    all["DaemonSet linkerd-cni"]["spec"]["template"]["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("checksum/config");
    all
}

#[test]
fn the_changes_of_each_platform_are_known() {
    let default = by_name(&with(json!({})));
    let mut text = String::new();
    for (name, _) in platforms() {
        let mut lines = Vec::new();
        let objects = with(json!({"platform": name}));
        difference("", &default, &by_name(&objects), &mut lines);
        text += &format!("{name}\n  {}\n", lines.join("\n  "));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_platform_name_renders_the_same_as_its_values_file() {
    for (name, file) in platforms() {
        let by_file = Render::new().file(&file).objects();
        assert_eq!(with(json!({"platform": name})).0, by_file.0, "{name}");
    }
}

#[test]
fn values_of_the_user_win_over_those_of_the_platform() {
    let objects = with(json!({
        "platform": "openshift", "destCNIBinDir": "/opt/plugins", "cniConfFileName": "own.conf",
        "networkAttachmentDefinition": {"namespace": "multus"}, "seLinuxOptions": {"type": "own_t"},
    }));
    let data = &objects.get("ConfigMap")["data"];
    assert_eq!(data["dest_cni_bin_dir"], "/opt/plugins");
    assert_eq!(data["dest_cni_net_dir"], "/etc/cni/multus/net.d");
    let file = objects.variable("install-cni", "LINKERD_CNI_CONF_NAME");
    assert_eq!(file, "own.conf");
    let definition = &objects.get("NetworkAttachmentDefinition")["metadata"];
    assert_eq!(definition["namespace"], "multus");
    let options = &objects.pod()["spec"]["securityContext"]["seLinuxOptions"];
    assert_eq!(options["type"], "own_t");
    let gke =
        with(json!({"platform": "gke", "priorityClassName": "own", "iptablesMode": "legacy"}));
    assert_eq!(gke.pod()["spec"]["priorityClassName"], "own");
    assert_eq!(gke.plugin()["linkerd"]["iptables-mode"], "legacy");
}

/// A node without the platform's directories, for example.
#[test]
fn a_value_set_to_the_charts_default_wins_over_the_platform() {
    let k3s = with(json!({
        "platform": "k3s", "destCNIBinDir": "/opt/cni/bin", "destCNINetDir": "/etc/cni/net.d",
    }));
    let data = &k3s.get("ConfigMap")["data"];
    assert_eq!(data["dest_cni_bin_dir"], "/opt/cni/bin");
    assert_eq!(data["dest_cni_net_dir"], "/etc/cni/net.d");
    let talos = with(json!({"platform": "talos", "iptablesMode": "auto"}));
    assert_eq!(talos.plugin()["linkerd"]["iptables-mode"], "auto");
    let gke = with(json!({"platform": "gke", "resourceQuota": {"enabled": false}}));
    assert!(!gke.have("ResourceQuota"));
    let openshift = with(json!({
        "platform": "openshift", "chained": true, "openshift": {"enabled": false},
        "networkAttachmentDefinition": {"enabled": false},
    }));
    assert_eq!(openshift.variable("install-cni", "LINKERD_CNI_CHAINED"), "true");
    assert!(!openshift.have("NetworkAttachmentDefinition"));
    assert!(!json!(openshift.0).to_string().contains("securitycontextconstraints"));
}

/// With `--reuse-values` the defaults of an older chart look like values of the user.
#[test]
fn the_platform_wins_over_the_defaults_of_an_older_chart() {
    for values in ["upstream.yaml", "former.yaml"] {
        let path = format!("{}/chart-tests/values/{values}", env!("CARGO_MANIFEST_DIR"));
        let older = |platform: &str| {
            let render = Render::new().with_file("values.yaml", &read(&path));
            render.values(&json!({"platform": platform})).objects()
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
