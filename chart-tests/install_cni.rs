//! `scripts/install-cni`: the flags of `linkerd install-cni` and the objects that they render.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::helm::{Objects, Render};

fn script(flags: &[&str], registry: &str) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install-cni");
    Command::new(path)
        .args(flags)
        .env("KUBECONFIG", "/dev/null")
        .env("LINKERD_DOCKER_REGISTRY", registry)
        .output()
        .unwrap()
}

/// Returns what the script prints.
fn text(flags: &[&str], registry: &str) -> String {
    let output = script(flags, registry);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{flags:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn printed(flags: &[&str]) -> Objects {
    Objects::parse(&text(flags, ""))
}

/// Renders the chart with these values and the `cliVersion` that the script sets.
fn rendered(mut values: Value) -> Vec<Value> {
    values["cliVersion"] = json!(concat!("linkerd/cli v", env!("CARGO_PKG_VERSION")));
    let mut objects = Render::new().values(&values).objects().0;
    // Only `helm test` creates this pod.
    objects.retain(|object| object["kind"] != "Pod");
    objects
}

#[test]
fn without_flags_the_namespace_and_the_default_objects_are_printed() {
    let mut printed = printed(&[]).0;
    let namespace = printed.remove(0);
    let labels = json!({
        "linkerd.io/cni-resource": "true", "config.linkerd.io/admission-webhooks": "disabled",
        "pod-security.kubernetes.io/enforce": "privileged",
    });
    let metadata = json!({"name": "linkerd-cni", "labels": labels});
    assert_eq!(namespace, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    assert_eq!(printed, rendered(json!({})));
}

/// Includes the cases of upstream's tests of the command.
#[test]
fn each_flag_sets_the_same_value_as_upstreams_command() {
    let cases = [
        (
            "--inbound-port 5143 --outbound-port=5140 --proxy-uid 12102 --proxy-gid 12102 \
             --cni-image my-docker-registry.io/awesome/cni-plugin-test-image --cni-image-version v2.4.0 \
             --cni-log-level debug --dest-cni-net-dir /etc/kubernetes/cni/net.d \
             --dest-cni-bin-dir /opt/my-cni/bin --priority-class-name system-node-critical",
            json!({
                "inboundProxyPort": 5143, "outboundProxyPort": 5140, "proxyUID": 12102, "proxyGID": 12102,
                "image": {"name": "my-docker-registry.io/awesome/cni-plugin-test-image", "version": "v2.4.0"},
                "logLevel": "debug", "destCNINetDir": "/etc/kubernetes/cni/net.d",
                "destCNIBinDir": "/opt/my-cni/bin", "priorityClassName": "system-node-critical",
            }),
        ),
        (
            "--dest-cni-net-dir=/etc/cni --dest-cni-bin-dir=/etc/cni",
            json!({"destCNINetDir": "/etc/cni", "destCNIBinDir": "/etc/cni"}),
        ),
        (
            "--skip-inbound-ports 80,8080-8090 --skip-inbound-ports 99 --skip-outbound-ports=443,1000",
            json!({"ignoreInboundPorts": "80,8080-8090,99", "ignoreOutboundPorts": "443,1000"}),
        ),
        ("--redirect-ports 80,8080", json!({"portsToRedirect": "80,8080"})),
        ("--cni-log-level WARN", json!({"logLevel": "warn"})),
        ("--use-wait-flag", json!({"useWaitFlag": true})),
        ("--use-wait-flag=false", json!({})),
        (
            "--registry example.com/mirror/",
            json!({"image": {"name": "example.com/mirror/cni-plugin"}}),
        ),
        // The default registry does not replace the registry of an image.
        (
            "--registry cr.l5d.io/linkerd --cni-image example.com/own",
            json!({"image": {"name": "example.com/own"}}),
        ),
        // Helm's flags win.
        (
            "--proxy-uid 1 --set proxyUID=2,resources.cpu.limit=1m --set-string podLabels.a=1",
            json!({"proxyUID": 2, "resources": {"cpu": {"limit": "1m"}}, "podLabels": {"a": "1"}}),
        ),
        // These have no effect in upstream's command either.
        (
            "--control-port 5190 --admin-port 5191 --linkerd-version edge-26.8.3 -v edge-26.8.3 \
             --cni-namespace other -L linkerd --context other --verbose",
            json!({}),
        ),
    ];
    for (flags, values) in cases {
        let flags: Vec<_> = flags.split_whitespace().collect();
        assert_eq!(printed(&flags).0[1..], rendered(values), "{flags:?}");
    }
}

#[test]
fn values_files_and_the_registry_in_the_environment_win_over_flags() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "proxyUID: 3\nlogFormat: json\n").unwrap();
    let path = file.path().to_str().unwrap();
    let expected = rendered(json!({"proxyUID": 3, "logFormat": "json"}));
    let attached = format!("-f{path}");
    for flags in [&["-f", path][..], &[&attached], &["--values", path]] {
        let flags = [&["--proxy-uid", "1"], flags].concat();
        assert_eq!(printed(&flags).0[1..], expected, "{flags:?}");
    }
    let objects = Objects::parse(&text(&["--registry", "example.com/flag"], "example.com/env"));
    let image = objects.container("install-cni")["image"].as_str().unwrap();
    assert!(image.starts_with("example.com/env/cni-plugin:"), "{image}");
}

#[test]
fn an_invalid_flag_or_value_prints_no_objects() {
    let not_a_port = "--skip-inbound-ports: \"x\" is neither a port nor a range";
    for (flags, said) in [
        (&["--skip-inbound-ports", "80,x"][..], not_a_port),
        (&["--skip-inbound-ports", "80, 81"], "\" 81\" is neither"),
        (&["--skip-inbound-ports", "80,"], "\"\" is neither"),
        (&["--skip-inbound-ports", "80\n81"], "80\n81\" is neither"),
        (&["--skip-outbound-ports", "65536"], "\"65536\" is neither"),
        (&["--skip-outbound-ports", "90-80"], "\"90-80\" ends before it starts"),
        (&["--cni-log-level", "loud"], "logLevel"),
        (&["--proxy-uid", "root"], "proxyUID"),
        (&["--use-wait-flag=perhaps"], "neither true nor false"),
        (&["--cni-image-version", "v1.4.0"], "image.version: v1.4.0 is upstream's image"),
        (&["--bogus", "1"], "unknown flag: --bogus"),
        (&["--proxy-uid"], "needs an argument"),
        (&["stray"], "unknown argument: stray"),
        (&["--set", "destCniNetDir=/x"], "did you mean destCNINetDir?"),
        (&["--proxy-gid", "' #\n: x"], "proxyGID"),
    ] {
        let output = script(flags, "");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{flags:?}");
        assert!(output.stdout.is_empty(), "{flags:?}");
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

/// By default kubectl prunes few kinds.
#[test]
fn the_allowlist_prunes_every_kind_of_the_chart() {
    let allowed = text(&["--prune-allowlist"], "");
    let everything = crate::helm::chart().join("ci/everything-values.yaml");
    for object in &Render::new().file(&everything).objects().0 {
        let [version, kind] = ["apiVersion", "kind"].map(|key| object[key].as_str().unwrap());
        // kubectl fails for a kind that the cluster lacks, and a cluster may lack these
        // besides the test's Pod.
        let lacking = ["Pod", "PodMonitor", "PrometheusRule", "NetworkAttachmentDefinition"];
        let is_labeled = object["metadata"]["labels"]["linkerd.io/cni-resource"] == "true";
        assert!(is_labeled || kind == "Pod", "{object}");
        if lacking.contains(&kind) {
            continue;
        }
        let version = if version == "v1" { "core/v1" } else { version };
        let flag = format!("--prune-allowlist={version}/{kind}\n");
        assert!(allowed.contains(&flag), "{flag}");
    }
}

/// Constructs newer than bash 3.2, and options of GNU tools.
const NOT_ON_MACOS: &str = "declare -A|local -A|local -n|mapfile|readarray|EPOCH|,,}|^^}|@Q}|&>>|sed -i|sed -r|\
     grep -P|readlink -f|date -d|stat -c|base64 -w|env -C";

#[test]
fn install_cni_uses_only_features_that_macos_has() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install-cni");
    let text = crate::helm::read(path);
    for line in text.lines().filter(|line| !line.trim().starts_with('#')) {
        for construct in NOT_ON_MACOS.split('|') {
            assert!(!line.contains(construct), "{construct}: {line}");
        }
        // In bash 3.2 with `set -u`, an empty array is unset.
        let guarded = !line.contains("[@]}") || line.contains("[@]+");
        assert!(guarded, "an array without `+`: {line}");
    }
}
