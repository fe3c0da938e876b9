//! Pods that exist before an uninstall and are deleted after it by the network config that libcni
//! cached, as CRI-O does. The cluster's runtime is containerd, whose cache has the same form.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::pods::{kubectl, stateful, unmeshed};
use crate::scene::Scene;
use crate::until::until;

const PODS: usize = 20;
const NAME: &str = "cached";
const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const RESULTS: &str = "/var/lib/cni/results";

/// IDs of the pods' sandboxes, by the cached results.
fn cached_ids() -> Vec<String> {
    let files = fs::read_dir(RESULTS).unwrap().map(|file| file.unwrap().path());
    let texts = files.filter_map(|path| fs::read(path).ok());
    let cached = texts.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    let of_test = cached.filter(|cached| {
        let args = cached["cniArgs"].as_array().into_iter().flatten();
        cached["ifName"] == "eth0"
            && args.clone().any(|arg| *arg == json!(["K8S_POD_NAMESPACE", NAME]))
    });
    of_test.map(|cached| cached["containerId"].as_str().unwrap().to_owned()).collect()
}

/// Deletes the sandboxes `ids` from the node's network, as CRI-O does.
fn delete(ids: &[String]) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    for (name, target) in [("etc", "/etc/cni/net.d"), ("bin", "/opt/cni/bin"), ("var", "/var")] {
        symlink(target, root.path().join(name)).unwrap();
    }
    let mut runtime = Command::new("cni-runtime");
    let output = runtime.arg("del-cached").arg(root.path()).args(ids).output();
    let output = output.expect("scripts/tools cni-runtime puts it where scripts/tools --path says");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn pods_are_deleted_by_cached_configs_after_an_uninstall_that_keeps_the_binary() {
    // After a panic the pods are dropped first, and the node last.
    let Scene { before, node, helm, pods } = Scene::begin();
    let keep = ["--set", "extraEnv[0].name=LINKERD_CNI_KEEP_BINARY"];
    helm.run("install", &[&keep[..], &["--set-string", "extraEnv[0].value=true"]].concat());
    let mut set = stateful(&unmeshed(NAME));
    set["spec"]["replicas"] = json!(PODS);
    set["spec"]["podManagementPolicy"] = json!("Parallel");
    set["spec"]["template"]["spec"]["automountServiceAccountToken"] = json!(false);
    pods.create(&[set]);
    kubectl(&format!("rollout status statefulset {NAME} -n {NAME} --timeout=180s"));
    let ids = cached_ids();
    assert_eq!(ids.len(), PODS);

    helm.uninstall();
    let mut kept = node.files();
    assert!(kept.remove(Path::new(BINARY)).is_some());
    assert_eq!(kept, before);

    // Without the binary the deletion fails, which shows that the cached config calls the plugin.
    let away = Path::new("/opt/cni/linkerd-cni.away");
    fs::rename(BINARY, away).unwrap();
    let error = delete(&ids[..1]);
    fs::rename(away, BINARY).unwrap();
    let error = error.expect_err("the plugin is missing");
    assert!(error.contains("failed to find plugin \"linkerd-cni\""), "{error}");
    delete(&ids).unwrap_or_else(|error| panic!("{error}"));
    assert!(cached_ids().is_empty());
    fs::remove_file(BINARY).unwrap();
    drop(pods);
    until("the node is as it was", || node.files() == before);
}
