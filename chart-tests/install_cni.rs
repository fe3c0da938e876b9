//! `scripts/install-cni`: the flags of `linkerd install-cni` and the objects that they render.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::changes::{by_name, differences};
use crate::helm::{Objects, Render, chart, read};
use crate::records::assert_record;

/// Runs a command of bash that calls `install-cni`. `$FILE` has values.
fn bash(command: &str) -> Output {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "proxyUID: 3\nlogFormat: json\n").unwrap();
    Command::new("bash")
        .args(["-c", command])
        .env("PATH", format!("{}:{}", scripts.display(), std::env::var("PATH").unwrap()))
        .env("KUBECONFIG", "/dev/null")
        .env("FILE", file.path())
        .env_remove("LINKERD_DOCKER_REGISTRY")
        .output()
        .unwrap()
}

/// Runs a command that calls `install-cni`. Returns the objects that it prints, and its stderr. No
/// objects: the command failed.
fn install_cni(command: &str) -> (Option<Objects>, String) {
    let output = bash(command);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    if output.status.success() {
        return (Some(Objects::parse(&text)), stderr);
    }
    assert_eq!(text, "", "{command}: {stderr}");
    (None, stderr)
}

#[test]
fn install_cni_prints_the_namespace_and_the_default_objects() {
    let (objects, _) = install_cni("install-cni");
    let mut printed = objects.unwrap().0;
    let namespace = printed.remove(0);
    let labels = json!({
        "linkerd.io/cni-resource": "true", "config.linkerd.io/admission-webhooks": "disabled",
        "pod-security.kubernetes.io/enforce": "privileged",
    });
    let metadata = json!({"name": "linkerd-cni", "labels": labels});
    assert_eq!(namespace, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    let version = json!({"cliVersion": concat!("linkerd/cli v", env!("CARGO_PKG_VERSION"))});
    let mut rendered = Render::new().values(&version).objects().0;
    // Only `helm test` creates this pod.
    rendered.retain(|object| object["kind"] != "Pod");
    assert_eq!(printed, rendered);
}

#[test]
fn each_flag_of_linkerd_install_cni_has_its_recorded_effect() {
    let (default_objects, _) = install_cni("install-cni");
    let default = by_name(&default_objects.unwrap());
    assert_record("install_cni", |command| {
        let (objects, stderr) = install_cni(command);
        let messages = stderr.lines().filter(|line| !line.is_empty());
        let mut lines: Vec<_> = messages.map(|line| format!("says {line}")).collect();
        match objects {
            Some(objects) => lines.extend(differences("", &default, &by_name(&objects))),
            None => lines.push("fails".to_owned()),
        }
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    });
}

/// Kinds that a cluster may lack. kubectl fails for a kind that it does not know.
const NOT_IN_EVERY_CLUSTER: [&str; 5] = [
    "PodMonitor",
    "PrometheusRule",
    "NetworkAttachmentDefinition",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Returns every object that the chart can create, without the pods of `helm test`.
fn every_object() -> Vec<Value> {
    let annotate = json!({"networkAttachmentDefinition": {"annotatePods": true}});
    let everything = Render::new().file(&chart().join("ci/everything-values.yaml"));
    let mut objects = everything.values(&annotate).objects().0;
    objects.retain(|object| object["kind"] != "Pod");
    objects
}

fn page() -> String {
    read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gitops.md"))
}

/// By default kubectl prunes few kinds.
#[test]
fn allowlist_prunes_every_kind_that_all_clusters_have() {
    let allowed = String::from_utf8(bash("install-cni --prune-allowlist").stdout).unwrap();
    for object in &every_object() {
        let version = object["apiVersion"].as_str().unwrap();
        let kind = object["kind"].as_str().unwrap();
        assert_eq!(object["metadata"]["labels"]["linkerd.io/cni-resource"], "true", "{object}");
        let version = if version == "v1" { "core/v1" } else { version };
        let flag = format!("--prune-allowlist={version}/{kind}\n");
        assert_eq!(allowed.contains(&flag), !NOT_IN_EVERY_CLUSTER.contains(&kind), "{flag}");
    }
}

#[test]
fn page_and_help_name_every_kind_that_is_not_pruned() {
    let help = String::from_utf8(bash("install-cni --help").stdout).unwrap();
    let page = page();
    let bullet = page.lines().find(|line| line.starts_with("- The upgrade does not delete"));
    for kind in NOT_IN_EVERY_CLUSTER {
        let kind = kind.trim_end_matches("Binding");
        assert!(help.contains(kind), "{kind}: {help}");
        assert!(bullet.unwrap().contains(kind), "{kind}: {bullet:?}");
    }
}

/// Deleting the namespace deletes the other objects.
#[test]
fn documented_commands_delete_every_object_outside_of_the_namespace() {
    let page = page();
    let deleted: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("kubectl delete "))
        .filter(|line| line.ends_with("-l linkerd.io/cni-resource=true"))
        .flat_map(|line| line.split(' ').next().unwrap().split(','))
        .collect();
    for object in &every_object() {
        let kind = object["kind"].as_str().unwrap();
        let plural = match kind {
            "NetworkAttachmentDefinition" => "network-attachment-definitions".to_owned(),
            _ if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y').to_lowercase()),
            _ => format!("{}s", kind.to_lowercase()),
        };
        let is_in_namespace = object["metadata"]["namespace"] == "linkerd-cni";
        assert!(is_in_namespace || deleted.contains(&&*plural), "{plural} are not deleted");
    }
}

/// Constructs newer than bash 3.2, and options of GNU tools.
const NOT_ON_MACOS: &str = "declare -A|local -A|local -n|mapfile|readarray|EPOCH|,,}|^^}|@Q}|&>>|sed -i|sed -r|\
     grep -P|readlink -f|date -d|stat -c|base64 -w|env -C";

#[test]
fn install_cni_uses_only_features_that_macos_has() {
    let text = read(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install-cni"));
    for line in text.lines().filter(|line| !line.trim().starts_with('#')) {
        for construct in NOT_ON_MACOS.split('|') {
            assert!(!line.contains(construct), "{construct}: {line}");
        }
        // In bash 3.2 with `set -u`, an empty array is unset.
        let guarded = !line.contains("[@]}") || line.contains("[@]+");
        assert!(guarded, "an array without `+`: {line}");
    }
}
