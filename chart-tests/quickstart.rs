//! `scripts/quickstart` with fake clients: what it refuses, and which of its calls change a
//! cluster.

mod fakes;

use fakes::{Fakes, Ran};

use serde::Deserialize;
use testkit::table;

use crate::helm::{read, render, yaml};

const TABLES: &str = include_str!("quickstart/cases.yaml");
const DOWN: [&str; 3] = ["--down", "--context", "prod"];
const GIVEN: [&str; 4] = ["--context", "prod", "--image", "example.com/cni-plugin:v1"];

/// A program that the script finds, with another body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    body: String,
}

/// An object of the cluster, as the script has kubectl print it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    list: String,
    line: String,
}

/// A row of `machines` in `quickstart/cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineRow {
    #[serde(default)]
    without: Vec<String>,
    program: Program,
    system: String,
    refused: Vec<String>,
}

/// A row of `foreign` in `quickstart/cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignRow {
    object: Object,
    text: String,
}

/// A step in a row of `steps` in `quickstart/cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    program: Option<Program>,
    object: Option<Object>,
    run: Option<String>,
    refused: Option<Vec<String>>,
    #[serde(default)]
    says: Vec<String>,
    makes: Option<MadeCall>,
    changes: Option<Changes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MadeCall {
    call: String,
    parts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Changes {
    Nothing,
}

fn assert_refused(ran: &Ran, sentences: &[impl AsRef<str>]) {
    assert!(!ran.success, "{ran:?}");
    for sentence in sentences {
        let sentence = sentence.as_ref();
        assert!(ran.said.contains(sentence), "{sentence:?}: {ran:?}");
    }
    assert_eq!(ran.changes(), [""; 0], "{ran:?}");
}

#[test]
fn quickstart_refuses_an_old_bash_and_another_shell() {
    let fakes = Fakes::new();
    let script = fakes::script();
    // bash sets BASH_VERSION itself when it starts.
    let old = format!("BASH_VERSION='3.2.57(1)-release'; source {}", script.display());
    assert_refused(&fakes.shell("bash", &["-c", &old]), &["bash 5", "3.2.57"]);
    let other = fakes.shell("sh", &[script.to_str().unwrap()]);
    assert_refused(&other, &["bash 5", "another shell"]);
}

#[test]
fn quickstart_names_alternatives_on_a_machine_that_cannot_run_a_cluster() {
    for (_name, row) in table::rows_of::<MachineRow>(TABLES, "machines") {
        let without: Vec<_> = row.without.iter().map(String::as_str).collect();
        let fakes = Fakes::new().without(&without);
        fakes.program(&row.program.name, &row.program.body);
        assert_refused(&fakes.run_on_system(&row.system, &[]), &row.refused);
    }
}

#[test]
fn each_recorded_case_of_quickstart_is_refused_or_removes_its_objects() {
    for (_name, steps) in table::rows_of::<Vec<Step>>(TABLES, "steps") {
        let fakes = Fakes::new();
        for step in steps {
            if let Some(program) = step.program {
                fakes.program(&program.name, &program.body);
            }
            if let Some(object) = step.object {
                fakes.object(&object.list, &object.line);
            }
            let Some(line) = step.run else { continue };
            let ran = fakes.run(&line.split_whitespace().collect::<Vec<_>>());
            if let Some(refused) = step.refused {
                assert_refused(&ran, &refused);
            }
            for text in step.says {
                assert!(ran.success && ran.said.contains(&text), "{text}: {ran:?}");
            }
            if let Some(made) = step.makes {
                let call = ran.call(&made.call);
                assert!(made.parts.iter().all(|part| call.contains(part)), "{call}");
            }
            if let Some(Changes::Nothing) = step.changes {
                assert_eq!(ran.changes(), [""; 0], "{ran:?}");
            }
        }
    }
}

#[test]
fn quickstart_ignores_an_exported_kubeconfig_without_context() {
    let fakes = Fakes::new();
    let ran = fakes.run(&[]);
    assert!(ran.said.contains("KUBECONFIG is ignored"), "{ran:?}");
    assert!(ran.calls.iter().any(|call| call.starts_with("kubectl")), "{ran:?}");
    for call in ran.calls.iter().chain(&fakes.run(&["--down"]).calls) {
        assert!(!call.contains(fakes::USERS_KUBECONFIG), "{call}");
    }
}

#[test]
fn quickstart_changes_nothing_if_another_tool_installed_linkerd_cni() {
    for (_name, row) in table::rows_of::<ForeignRow>(TABLES, "foreign") {
        let fakes = Fakes::new();
        fakes.object(&row.object.list, &row.object.line);
        let texts = [&row.text, "quickstart did not create", "Nothing was changed", "context prod"];
        assert_refused(&fakes.run(&GIVEN), &texts);
        assert_removes_nothing(&fakes.run(&DOWN), &row.text);
    }
}

fn assert_removes_nothing(down: &Ran, name: &str) {
    assert!(down.success, "{down:?}");
    assert_eq!(down.changes(), [""; 0], "{down:?}");
    for text in ["nothing that quickstart created", name] {
        assert!(down.said.contains(text), "{down:?}");
    }
}

#[test]
fn quickstart_installs_a_labelled_release_only_in_the_given_context() {
    let fakes = Fakes::new();
    let ran = fakes.run(&GIVEN);
    assert!(ran.success, "{ran:?}");
    let install = ran.call("install linkerd-cni linkerd/linkerd2-cni");
    for part in ["--kube-context prod", "--labels linkerd2-cni-quickstart=true"] {
        assert!(install.contains(part), "{install}");
    }
    for call in ran.changes() {
        let local = ["helm package", "helm repo", "helm search"];
        if !local.iter().any(|verb| call.starts_with(verb)) {
            let names = ["--context prod", "--kube-context prod"];
            assert!(names.iter().any(|name| call.contains(name)), "{call}");
        }
        assert!(!call.starts_with("kind") && !call.starts_with("docker"), "{call}");
    }
    // The user's helm settings, such as repositories, are not used.
    for call in ran.calls.iter().filter(|call| call.starts_with("helm")) {
        assert!(!call.contains(fakes::USERS_HELM), "{call}");
    }
    let down = fakes.run(&["--down"]);
    assert!(down.said.contains("scripts/quickstart --down --context prod"), "{down:?}");
    assert_eq!(down.changes(), [""; 0], "{down:?}");
}

#[test]
fn quickstart_installs_the_given_tag_or_digest() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let by_digest = format!("a.b/cni-plugin@{digest}");
    let by_both = format!("a.b/cni-plugin:v2@{digest}");
    let default = concat!("a.b/cni-plugin:v", env!("CARGO_PKG_VERSION"), "@");
    for (image, rendered) in [
        ("a.b/cni-plugin:v2", "a.b/cni-plugin:v2"),
        (&by_digest, &format!("{default}{digest}")),
        (&by_both, &by_both),
    ] {
        let fakes = Fakes::new();
        let ran = fakes.run(&["--context", "prod", "--image", image]);
        assert!(ran.success, "{image}: {ran:?}");
        let values = yaml(&read(fakes.cache().join("quickstart/values.json")));
        assert_eq!(render(values).container("install-cni")["image"], rendered, "{image}");
    }
}

#[test]
fn quickstart_needs_four_programs_and_down_removes_only_its_kind_cluster() {
    let fakes = Fakes::new().without(&["cargo", "rustc", "go", "python3"]);
    let ran = fakes.run(&[]);
    let mut words = ran.call("kind create cluster").split(' ');
    let name = words.find(|word| word.starts_with("linkerd2-cni-quickstart-")).unwrap().to_owned();
    assert!(ran.said.contains(&name), "announced: {ran:?}");
    for call in [
        "docker buildx build",
        "kind load docker-image linkerd2-cni-quickstart/cni-plugin:v",
        "install linkerd-cni linkerd/linkerd2-cni",
    ] {
        ran.call(call);
    }

    let again = fakes.run(&[]);
    assert!(!again.calls.iter().any(|call| call.contains("kind create")), "{again:?}");

    // A cluster of somebody else, with the name that earlier versions of quickstart used.
    fakes.kind_cluster("linkerd2-cni");
    let down = fakes.run(&["--down"]);
    let deleted: Vec<_> = down.calls.iter().filter(|call| call.contains("kind delete")).collect();
    assert_eq!(deleted.len(), 1, "{down:?}");
    assert!(deleted[0].contains(&format!("--name {name} ")), "{deleted:?}");
    assert_removes_nothing(&fakes.run(&["--down"]), "");

    // A creation that was interrupted left a cluster, too.
    fakes.program("kind-create", "exit 1");
    assert!(!fakes.run(&[]).success);
    fakes.run(&["--down"]).call("kind delete cluster");
}

/// A record with the name of another cluster must not have that cluster deleted.
#[test]
fn down_deletes_only_the_kind_cluster_of_quickstart() {
    let fakes = Fakes::new();
    fakes.kind_cluster("kind");
    let records = fakes.cache().join("quickstart");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(records.join("kind-name"), "kind\n").unwrap();
    assert_refused(&fakes.run(&["--down"]), &["kind-name", "\"kind\""]);
    assert_refused(&fakes.run(&[]), &["kind-name", "\"kind\""]);
}

#[test]
fn quickstart_works_without_home_and_flock_and_quotes_printed_commands() {
    // macOS has no flock.
    let fakes = Fakes::new().without(&["flock"]);
    let script = format!("unset HOME; exec {}", fakes::script().display());
    let ran = fakes.shell("bash", &["-c", &script]);
    ran.call("install linkerd-cni linkerd/linkerd2-cni");
    let kubeconfig = fakes.cache().join("quickstart/kind.kubeconfig");
    let quoted = kubeconfig.display().to_string().replace(' ', "\\ ");
    let printed = format!("kubectl --kubeconfig {quoted} --context kind-");
    assert!(ran.said.contains(&printed), "{printed}: {ran:?}");
}

#[test]
fn second_quickstart_with_the_same_cache_waits_for_the_first_one() {
    let fakes = Fakes::new();
    std::fs::create_dir_all(fakes.cache()).unwrap();
    // The lock of a first run, which ends a second after the second run started.
    let script = format!(
        "exec 9>'{}/quickstart.lock'; flock 9; {{ {} --down; }} 9>&- & sleep 1; exec 9>&-; wait $!",
        fakes.cache().display(),
        fakes::script().display()
    );
    let ran = fakes.shell("bash", &["-c", &script]);
    assert!(ran.success && ran.said.contains("waiting for another script"), "{ran:?}");
    assert!(ran.said.contains("nothing that quickstart created"), "{ran:?}");
}

/// The README shows a recording of quickstart. If this test fails, the recording shows an old
/// version: run `scripts/checks/pictures --recording`.
#[test]
fn recording_in_the_readme_has_the_steps_and_the_table_of_quickstart() {
    let recorded = recorded_text();
    let printed = Fakes::new().run(&[]).said;
    let (steps, rows) = (steps_after_creation(&printed), table_rows(&printed));
    assert!(steps.len() >= 6 && rows.len() >= 7, "{steps:?}, {rows:?}: {printed}");
    for name in steps.into_iter().chain(rows) {
        assert!(recorded.contains(name), "not in the recording: {name}");
    }
}

/// The terminal's text in `docs/pictures/quickstart.cast`. The first line of this file is an
/// object, and each other line is an event: `[seconds, "o", text]`.
/// https://docs.asciinema.org/manual/asciicast/v2/
fn recorded_text() -> String {
    let recording = include_str!("../docs/pictures/quickstart.cast");
    let events = recording.lines().skip(1);
    events.map(|line| serde_json::from_str::<(f64, String, String)>(line).unwrap().2).collect()
}

/// Names of the steps that are the same on a kind cluster, as in the tests, and on a one-node
/// cluster, as in the recording: the steps after the creation of the cluster.
fn steps_after_creation(printed: &str) -> Vec<&str> {
    let steps = printed.lines().filter(|line| line.starts_with("  ") && line.ends_with(" s"));
    let after_creation = steps.skip_while(|line| !line.contains("load the images"));
    after_creation.map(|line| line.trim_start().split("  ").next().unwrap()).collect()
}

/// The heading of the table of connections, and the name of each connection.
fn table_rows(printed: &str) -> Vec<&str> {
    let mut table = printed.lines().skip_while(|line| !line.starts_with("connection "));
    let heading = table.next().unwrap_or_default().trim_end();
    let rows = table.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with(' '));
    let names = rows.map(|line| line.split("  ").next().unwrap());
    [heading].into_iter().chain(names).collect()
}
