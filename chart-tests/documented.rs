//! The commands and manifests in the pages: each is shown to work, or says why it cannot run here.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use testkit::table;

use crate::commands::{self, Shown};
use crate::helm::{Objects, chart, files_below, helm, read, render, yaml};

#[test]
fn each_documented_command_has_a_test_or_a_reason_for_none() {
    let all = commands::commands();
    for (beginning, _) in commands::rows() {
        let mut texts = all.iter().map(|command| format!("{} ", command.text));
        assert!(texts.any(|text| text.starts_with(beginning)), "no page has {beginning}");
    }
    let unknown: Vec<_> = all.iter().filter(|command| command.shown().is_none()).collect();
    assert!(unknown.is_empty(), "add rows to testkit/src/documented.txt for {unknown:#?}");
    for page in commands::pages() {
        let text = read(&page);
        for language in ["bash", "shell", "console", "sh-session"] {
            let other = text.contains(&format!("```{language}\n"));
            assert!(!other, "{}: use ```sh instead of ```{language}", page.display());
        }
    }
}

#[test]
fn tests_in_the_table_of_commands_exist() {
    let directories = ["src/tests", "chart-tests"].map(|path| testkit::repository().join(path));
    let files = directories.iter().flat_map(|directory| files_below(directory, "rs"));
    let sources: String = files.map(read).collect();
    let steps = read(testkit::repository().join("scripts/test"));
    for (beginning, shown) in commands::rows() {
        if let Shown::By(name) = shown {
            let is_test = sources.contains(&format!("\n#[test]\nfn {name}()"));
            let is_step = steps.contains(&format!("plan {name} "));
            assert!(is_test || is_step, "{beginning}: no test and no step {name}");
        }
    }
}

/// Runs the first command of a line as a dry run. An upgrade needs a cluster, so it is run as an
/// installation, without the flag that only an upgrade has.
fn dry_run(text: &str) -> Output {
    // Without what follows helm on the line.
    let mut end = text.len();
    for operator in [" | ", " >", " && "] {
        if let Some(index) = text.find(operator) {
            end = end.min(index);
        }
    }
    let text = text[..end]
        .replace("helm upgrade ", "helm install ")
        .replace(UPGRADES_FLAG, " ")
        .replace("helm install ", "helm install --dry-run=client ");
    let scratch = tempfile::tempdir().unwrap();
    let charts = chart().parent().unwrap().to_owned();
    std::os::unix::fs::symlink(charts, scratch.path().join("charts")).unwrap();
    fs::write(scratch.path().join("values.yaml"), "startupTaint: a\n").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euc", &text]).current_dir(scratch.path()).env("KUBECONFIG", "/dev/null");
    bash.output().unwrap()
}

const UPGRADES_FLAG: &str = " --reset-then-reuse-values ";

#[test]
fn helm_accepts_every_documented_command() {
    let help = helm(&["upgrade", "--help"]).stdout;
    assert!(String::from_utf8(help).unwrap().contains(UPGRADES_FLAG));
    let mut rendered = commands::commands();
    rendered.retain(|command| command.shown() == Some(Shown::Rendered));
    assert!(rendered.len() > 12, "{rendered:?}");
    for command in rendered {
        let output = dry_run(&format!("{} ", command.text));
        let objects = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && objects.contains("\nkind: "), "{command:?}: {output:?}");
    }
}

/// Returns the objects in the YAML blocks of a page.
fn manifests(page: &str) -> Objects {
    let text = read(testkit::repository().join(page));
    let mut objects = Vec::new();
    for rest in text.split("```yaml\n").skip(1) {
        let block = rest.split("```").next().unwrap();
        objects.extend(block.split("---\n").map(yaml));
    }
    Objects(objects)
}

#[test]
fn manifests_for_argo_cd_and_flux_admit_the_agent_in_their_namespace() {
    let page_objects = manifests("docs/gitops.md");
    let argo = &page_objects.get("Application")["spec"];
    let flux = &page_objects.get("HelmRelease")["spec"];
    let label = "pod-security.kubernetes.io/enforce";
    let managed = &argo["syncPolicy"]["managedNamespaceMetadata"]["labels"][label];
    assert_eq!(*managed, "privileged");
    assert_eq!(argo["syncPolicy"]["syncOptions"], json!(["CreateNamespace=true"]));
    assert_eq!(
        page_objects.get_by_name("Namespace", "linkerd-cni")["metadata"]["labels"][label],
        "privileged"
    );

    let argo_helm = &argo["source"]["helm"];
    let argo_namespace = &argo["destination"]["namespace"];
    let flux_chart = &flux["chart"]["spec"];
    let flux_namespace = &page_objects.get("HelmRelease")["metadata"]["namespace"];
    for (path, release, namespace, values) in [
        (
            &argo["source"]["path"],
            &argo_helm["releaseName"],
            argo_namespace,
            &argo_helm["valuesObject"],
        ),
        (&flux_chart["chart"], &flux["releaseName"], flux_namespace, &flux["values"]),
    ] {
        let path = path.as_str().unwrap().trim_start_matches("./");
        assert!(testkit::repository().join(path).join("Chart.yaml").exists(), "{path}");
        assert_eq!((release, namespace), (&json!("linkerd-cni"), &json!("linkerd-cni")));
        let objects = render(values.clone());
        let image = objects.container("install-cni")["image"].as_str().unwrap();
        assert!(image.starts_with("registry.example.com/linkerd/cni-plugin:v"), "{image}");
    }
    let source = &flux_chart["sourceRef"];
    let repository = page_objects.get("GitRepository");
    assert_eq!(source["kind"], "GitRepository");
    assert_eq!(source["name"], repository["metadata"]["name"]);
    assert_eq!(repository["spec"]["url"], argo["source"]["repoURL"]);
}

/// Argo CD refuses to sync an object that the project does not permit: a kind without a namespace
/// that `clusterResourceWhitelist` lacks, or another namespace than those in `destinations`.
#[test]
fn argo_cd_project_permits_only_the_kinds_of_the_chart() {
    let page_objects = manifests("docs/gitops.md");
    let project = page_objects.get("AppProject");
    let application = page_objects.get("Application");
    let spec = &application["spec"];
    assert_eq!(spec["project"], project["metadata"]["name"]);
    assert_eq!(project["spec"]["sourceRepos"], json!([spec["source"]["repoURL"]]));
    let destinations = project["spec"]["destinations"].as_array().unwrap();
    assert!(destinations.contains(&spec["destination"]), "{destinations:?}");
    let finalizers = &application["metadata"]["finalizers"];
    assert_eq!(*finalizers, json!(["resources-finalizer.argocd.argoproj.io"]));

    let mut values = yaml(&read(chart().join("ci/everything-values.yaml")));
    for optional in ["podMonitor", "prometheusRule", "grafanaDashboard"] {
        values[optional]["namespace"] = json!("");
    }
    values["networkAttachmentDefinition"] = json!({"enabled": true, "annotatePods": true});
    let mut kinds = BTreeSet::from([("".to_owned(), "Namespace".to_owned())]);
    for object in render(values).0 {
        let version = object["apiVersion"].as_str().unwrap();
        let kind = object["kind"].as_str().unwrap();
        let namespace = &object["metadata"]["namespace"];
        if namespace.is_null() {
            kinds.insert((version.split('/').next().unwrap().to_owned(), kind.to_owned()));
        } else {
            let is_permitted = destinations.iter().any(|place| place["namespace"] == *namespace);
            assert!(is_permitted, "{kind} in {namespace}");
        }
    }
    let mut permitted_kinds = BTreeSet::new();
    for entry in project["spec"]["clusterResourceWhitelist"].as_array().unwrap() {
        let group = entry["group"].as_str().unwrap();
        let kind = entry["kind"].as_str().unwrap();
        permitted_kinds.insert((group.to_owned(), kind.to_owned()));
    }
    assert_eq!(permitted_kinds, kinds);
    assert!(project["spec"].get("namespaceResourceWhitelist").is_none());
}

/// Parses one side of a diff: the lines that do not begin with the sign of the other side.
fn side_of_diff(diff: &str, other_sign: char) -> Value {
    let mut text = String::new();
    for line in diff.lines().filter(|line| !line.starts_with(other_sign)) {
        // The first character is the sign or a space.
        text += &format!("{}\n", &line[1..]);
    }
    yaml(&text)
}

#[test]
fn documented_diffs_lead_from_upstreams_chart_to_the_manifests() {
    let page = read(testkit::repository().join("docs/gitops.md"));
    let page_objects = manifests("docs/gitops.md");
    let diffs: Vec<_> = page.split("```diff\n").skip(1).collect();
    assert_eq!(diffs.len(), 2);
    for diff in diffs {
        let diff = diff.split("```").next().unwrap();
        let before = side_of_diff(diff, '+');
        let after = side_of_diff(diff, '-');
        let manifest = page_objects.get(after["kind"].as_str().unwrap());
        assert_eq!(before["metadata"], after["metadata"]);
        for key in ["name", "namespace"] {
            assert_eq!(after["metadata"][key], manifest["metadata"][key]);
        }
        let mut before = before["spec"].clone();
        let mut after = after["spec"].clone();
        let is_argo = manifest["kind"] == "Application";
        let place = if is_argo { "/source/helm/valuesObject" } else { "/values" };
        let old = before.pointer_mut(place).unwrap().take();
        let mut new = after.pointer_mut(place).unwrap().take();
        let mut expected = manifest["spec"].clone();
        let documented = expected.pointer_mut(place).unwrap().take();
        assert_eq!(new["image"], documented["image"]);
        assert_eq!(new["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 0);
        // Only upstream's image is left out of the old values.
        new["image"] = old["image"].clone();
        new.as_object_mut().unwrap().remove("updateStrategy");
        assert_eq!(old, new);
        if is_argo {
            assert_eq!(before["source"]["chart"], "linkerd2-cni");
            // The user's own `syncPolicy` stays, and the namespace exists already.
            expected.as_object_mut().unwrap().remove("syncPolicy");
            assert_eq!(after, expected);
        } else {
            assert_eq!(before["chart"]["spec"]["chart"], "linkerd2-cni");
            expected.as_object_mut().unwrap().remove("test");
            assert_eq!(after, expected);
        }
        let new = side_of_diff(diff, '-')["spec"].pointer(place).unwrap().clone();
        assert_eq!(
            render(new).plugin()["linkerd"]["outbound-ports-to-ignore"],
            json!(["25", "443"])
        );
    }
}

#[test]
fn documented_umbrella_chart_renders() {
    let Objects(page_objects) = manifests("docs/gitops.md");
    let parent = page_objects.iter().find(|part| part["name"] == "mesh").unwrap();
    let values = page_objects.iter().find(|part| part.get("linkerd2-cni").is_some()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mesh = scratch.path().join("mesh");
    fs::create_dir(&mesh).unwrap();
    let mut copy = Command::new("cp");
    let status = copy.arg("-r").arg(chart()).arg(scratch.path()).status().unwrap();
    assert!(status.success());
    fs::write(mesh.join("Chart.yaml"), parent.to_string()).unwrap();
    fs::write(mesh.join("values.yaml"), values.to_string()).unwrap();
    let mesh = mesh.to_str().unwrap();
    let output = helm(&["dependency", "update", mesh]);
    assert!(output.status.success(), "{output:?}");
    let output = helm(&["template", "mesh", mesh, "-n", "linkerd-cni", "--kube-version=1.36.0"]);
    assert!(output.status.success(), "{output:?}");
    let objects = Objects::parse(&String::from_utf8(output.stdout).unwrap());
    let image = objects.container("install-cni")["image"].as_str().unwrap();
    assert!(image.starts_with("registry.example.com/linkerd/cni-plugin:v"), "{image}");
    let volumes = objects.pod()["spec"]["volumes"].to_string();
    assert!(volumes.contains("/var/lib/rancher/k3s/agent/etc/cni/net.d"), "{volumes}");
}

/// Karpenter expects that pods tolerate a taint in `taints`.
#[test]
fn agent_removes_the_startup_taint_of_the_documented_node_pool() {
    let page_objects = manifests("docs/platforms.md");
    let spec = &page_objects.get("NodePool")["spec"]["template"]["spec"];
    let taint = &spec["startupTaints"][0];
    assert_eq!((spec.get("taints"), &taint["effect"]), (None, &json!("NoExecute")));
    let objects = render(json!({"startupTaint": taint["key"]}));
    let removed = objects.variable("install-cni", "LINKERD_CNI_STARTUP_TAINT");
    assert_eq!(removed, taint["key"]);
    let page = read(testkit::repository().join("docs/startup-taint.md"));
    assert!(page.contains(&format!("startupTaint={}", taint["key"].as_str().unwrap())));
}

/// Returns the spec of the exception for Kyverno of this API version.
fn policy_exception<'o>(page_objects: &'o Objects, api_version: &str) -> &'o Value {
    let is_exception = |object: &&Value| {
        object["kind"] == "PolicyException" && object["apiVersion"] == api_version
    };
    let exception = page_objects.0.iter().find(is_exception);
    &exception.unwrap_or_else(|| panic!("no PolicyException of {api_version}"))["spec"]
}

#[test]
fn documented_policy_exceptions_match_the_needs_of_the_agents_pods() {
    let page_objects = manifests("docs/security.md");
    let of_rules = policy_exception(&page_objects, "kyverno.io/v2");
    let of_policies = policy_exception(&page_objects, "policies.kyverno.io/v1");
    for (list, field) in
        [(&of_rules["exceptions"], "policyName"), (&of_policies["policyRefs"], "name")]
    {
        let policies = list.as_array().unwrap().iter().map(|exception| &exception[field]);
        assert_eq!(Vec::from_iter(policies), ["disallow-host-path", "disallow-capabilities"]);
    }
    let objects = render(json!({}));
    let pod = objects.pod().to_string();
    for violation in [r#""hostPath":{"#, r#""add":["#] {
        assert!(pod.contains(violation), "{violation} needs no exception");
    }
    // What the other baseline policies of the chart `kyverno-policies` look for.
    for (policy, violation) in table::rows_of::<String>(include_str!("cases.yaml"), "kyverno") {
        assert!(!pod.contains(&violation), "{policy}: {violation} needs an exception");
    }
    let resources = &of_rules["match"]["any"][0]["resources"];
    let name = objects.get("DaemonSet")["metadata"]["name"].as_str().unwrap();
    assert_eq!(resources["names"], json!([format!("{name}*")]));
    assert_eq!(resources["namespaces"], json!(["linkerd-cni"]));
    assert_eq!(
        of_policies["matchConditions"][0]["expression"],
        format!(
            "object.metadata.namespace == \"linkerd-cni\" && \
             object.metadata.name.startsWith(\"{name}\")"
        )
    );
    let excluded = &page_objects.get("Config")["spec"]["match"][0]["excludedNamespaces"];
    assert_eq!(*excluded, json!(["linkerd-cni"]));
}
