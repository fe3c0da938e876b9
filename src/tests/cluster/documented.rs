//! Runs the commands of the pages on the cluster: the README's installation, and an upgrade as
//! docs/upgrade.md has it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use tempfile::TempDir;

use crate::agent::{PLUGIN_ACCOUNT, agent};
use crate::commands::{self, Shown};
use crate::kubectl::kubectl;
use crate::quickstart::delete_release_namespace;
use crate::scene::Scene;
use crate::{api, node, pods};

/// The image in the pages, and the image of this cluster.
const DOCUMENTED_IMAGE: &str = "registry.example.com/linkerd/cni-plugin";
const IMAGE: &str = "cr.l5d.io/linkerd/cni-plugin";
/// The file that stands for a user's `values.yaml`.
const VALUES: &str = "charts/linkerd2-cni/ci/default-values.yaml";

#[test]
fn documented_commands_succeed_on_a_cluster() {
    let scene = Scene::begin();
    delete_release_namespace();
    let shell = Shell::new();
    // Linkerd's CLI is not available here.
    let install = commands_on_page("README.md", |text| {
        text.starts_with("kubectl ") || text.starts_with("helm ")
    });
    assert_eq!(install.len(), 4, "{install:?}");
    for text in install {
        shell.must(&text);
    }
    scene.pods.start(&[pods::meshed("meshed")]);
    // Each command once, even if several pages have it.
    let mut texts = BTreeSet::new();
    for command in commands::commands() {
        if command.shown() == Some(Shown::OnCluster) {
            texts.insert(command.text);
        }
    }
    assert!(texts.len() > 25, "{texts:?}");
    for text in texts {
        shell.must(&text);
    }
    for text in commands_on_page("docs/upgrade.md", |text| text.starts_with("helm upgrade ")) {
        shell.must(&text);
        shell.must("kubectl rollout status -n linkerd-cni daemonset/linkerd-cni --timeout=60s");
    }
    // Revokes the plugin's tokens. The test `agent_replaces_a_damaged_or_revoked_token`
    // shows that the agent requests a new one.
    for text in commands_on_page("docs/security.md", |_| true) {
        shell.must(&text);
    }
    api::get(PLUGIN_ACCOUNT);
    scene.uninstall();
}

/// Returns the selected commands of a page.
pub fn commands_on_page(page: &str, is_selected: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for command in commands::commands() {
        if command.page == page && is_selected(&command.text) {
            texts.push(command.text);
        }
    }
    texts
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
        let text = replace_placeholders(text);
        // A command that waits without a limit of its own would keep the test program, and CI, for
        // ever.
        let mut bash = Command::new("timeout");
        bash.args(["180", "bash", "-uc", &text]).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        for name in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
            bash.env(name, self.home.path().join(name));
        }
        let output = bash.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let first_lines = stdout.lines().take(3).collect::<Vec<_>>().join("\n");
        println!("{:>6.1?} $ {text}\n{first_lines}", begin.elapsed());
        output
    }

    /// Runs commands of pages. Panics if a command fails.
    pub fn must(&self, text: &str) {
        let output = self.run(text);
        if output.status.success() {
            return;
        }
        let is_expected = is_expected_code(text, output.status.code());
        assert!(is_expected && output.stderr.is_empty(), "{text}: {output:?}");
    }
}

/// Whether the exit code is no failure of the command. A `grep` may find nothing, and `linkerd cni`
/// may report something as wrong or unknown: with the default values, link-local connections over
/// IPv6 may bypass the proxy.
fn is_expected_code(text: &str, code: Option<i32>) -> bool {
    if text.contains("grep ") && code == Some(1) {
        return true;
    }
    let is_report =
        text.starts_with("linkerd cni bypass") || text.starts_with("linkerd cni explain");
    is_report && matches!(code, Some(1 | 2))
}

/// Replaces the placeholders of a page by names of this cluster.
fn replace_placeholders(text: &str) -> String {
    let mut text = text.replace(DOCUMENTED_IMAGE, IMAGE);
    text = text.replace(" -f values.yaml ", &format!(" -f {VALUES} "));
    text = text.replacen("linkerd cni ", concat!(env!("CARGO_BIN_EXE_linkerd-cni-cli"), " "), 1);
    if text.contains("CONTEXT") {
        text = text.replace("CONTEXT", kubectl("config current-context").trim());
    }
    if text.contains("/AGENT-POD:") {
        text = text.replace("/AGENT-POD:", &format!("/{}:", agent().pod));
    }
    // In the namespace of the release, POD is an agent.
    let is_agent = text.contains("-n linkerd-cni ");
    let words: Vec<String> = text.split(' ').map(|word| replace_word(word, is_agent)).collect();
    words.join(" ")
}

/// Replaces a word that is a placeholder or ends with one, such as `pod/POD` and
/// `spec.nodeName=NODE`.
fn replace_word(word: &str, is_agent: bool) -> String {
    let begin = match word.rfind(['/', '=']) {
        Some(separator) => separator + 1,
        None => 0,
    };
    let (before, placeholder) = word.split_at(begin);
    let name = match placeholder {
        "AGENT-POD" => agent().pod,
        "POD" if is_agent => agent().pod,
        // The other pod is in a namespace of its name.
        "POD" | "NAMESPACE" => "meshed".to_owned(),
        "REVISION" => "1".to_owned(),
        "NODE" => node::name(),
        _ => return word.to_owned(),
    };
    format!("{before}{name}")
}
