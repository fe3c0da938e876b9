//! Runs the commands of the pages on the cluster: the README's installation, and an upgrade as
//! docs/upgrade.md has it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use tempfile::TempDir;

use crate::agent::agent;
use crate::commands::{self, Shown};
use crate::helm::NAMESPACE;
use crate::pods::{self, field, kubectl};
use crate::quickstart::delete_release_namespace;
use crate::scene::Scene;

const IMAGE: [&str; 2] =
    ["registry.example.com/linkerd/cni-plugin", "cr.l5d.io/linkerd/cni-plugin"];
/// The user's own values, as far as a page names a file of them.
const VALUES: &str = "charts/linkerd2-cni/ci/default-values.yaml";

#[test]
fn documented_commands_succeed_on_a_cluster() {
    let scene = Scene::begin();
    let Scene { pods, .. } = &scene;
    delete_release_namespace();
    let shell = Shell::new();
    // Linkerd's CLI is not available here.
    let install =
        on_page("README.md", |text| text.starts_with("kubectl ") || text.starts_with("helm "));
    assert_eq!(install.len(), 4, "{install:?}");
    for text in install {
        shell.must(&text);
    }
    pods.start(&[pods::meshed("meshed")]);
    let all = commands::commands().into_iter();
    let mut of_cluster: Vec<String> = all
        .filter(|command| command.shown() == Some(Shown::OnCluster))
        .map(|command| command.text)
        .collect();
    of_cluster.sort();
    of_cluster.dedup();
    assert!(of_cluster.len() > 25, "{of_cluster:?}");
    for text in of_cluster {
        shell.must(&text);
    }
    for text in on_page("docs/upgrade.md", |text| text.starts_with("helm upgrade ")) {
        shell.must(&text);
        shell.must("kubectl rollout status -n linkerd-cni daemonset/linkerd-cni --timeout=60s");
    }
    // Revokes the plugin's tokens. The test `the_agent_replaces_a_damaged_and_a_revoked_token`
    // shows that the agent requests a new one.
    for text in on_page("docs/security.md", |_| true) {
        shell.must(&text);
    }
    kubectl(&format!("get serviceaccount linkerd-cni-plugin -n {NAMESPACE}"));
    scene.uninstall();
}

pub fn on_page(page: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let commands = commands::commands().into_iter();
    let of_page = commands.filter(|command| command.page == page && is_wanted(&command.text));
    of_page.map(|command| command.text).collect()
}

/// Runs commands of pages, with settings of Helm that no other test uses.
pub struct Shell {
    home: TempDir,
}

impl Shell {
    pub fn new() -> Self {
        Shell { home: tempfile::tempdir().unwrap() }
    }

    pub fn run(&self, text: &str) -> Output {
        let begin = Instant::now();
        let text = with_names(text);
        // A command that waits without a limit of its own would keep the test program, and CI, for
        // ever.
        let mut bash = Command::new("timeout");
        bash.args(["180", "bash", "-uc", &text]).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        for name in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
            bash.env(name, self.home.path().join(name));
        }
        let output = bash.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let some = printed.lines().take(3).collect::<Vec<_>>().join("\n");
        println!("{:>6.1?} $ {text}\n{some}", begin.elapsed());
        output
    }

    /// Runs commands of pages. Panics if a command fails. A `grep` that finds nothing is no
    /// failure, nor is a report of `linkerd cni` that something is wrong or unknown: with the
    /// default values, link-local connections over IPv6 may bypass the proxy.
    pub fn must(&self, text: &str) {
        let output = self.run(text);
        let finds_nothing = output.status.code() == Some(1) && text.contains("grep ");
        let is_report =
            ["linkerd cni bypass", "linkerd cni explain"].iter().any(|name| text.starts_with(name));
        let reports_path = matches!(output.status.code(), Some(1 | 2)) && is_report;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || ((finds_nothing || reports_path) && error.is_empty()),
            "{text}: {output:?}"
        );
    }
}

fn with_names(text: &str) -> String {
    let text = text.replace(IMAGE[0], IMAGE[1]);
    let text = text.replace(" -f values.yaml ", &format!(" -f {VALUES} "));
    let text =
        text.replacen("linkerd cni ", concat!(env!("CARGO_BIN_EXE_linkerd-cni-cli"), " "), 1);
    let text = match text.contains("CONTEXT") {
        true => text.replace("CONTEXT", kubectl("config current-context").trim()),
        false => text,
    };
    let text = if text.contains("/AGENT-POD:") {
        text.replace("/AGENT-POD:", &format!("/{}:", agent().pod))
    } else {
        text
    };
    // In the namespace of the release, POD is an agent. The other pod is in a namespace of its
    // name.
    let is_agent = text.contains("-n linkerd-cni ");
    let name = |placeholder: &str| match placeholder {
        "AGENT-POD" => Some(agent().pod),
        "POD" if is_agent => Some(agent().pod),
        "POD" | "NAMESPACE" => Some("meshed".to_owned()),
        "REVISION" => Some("1".to_owned()),
        "NODE" => Some(field("nodes", ".items[0].metadata.name")),
        _ => None,
    };
    let word = |word: &str| {
        // Also `pod/POD` and `spec.nodeName=NODE`.
        let at = word.rfind(['/', '=']).map_or(0, |at| at + 1);
        let (before, placeholder) = word.split_at(at);
        name(placeholder).map_or_else(|| word.to_owned(), |name| format!("{before}{name}"))
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
