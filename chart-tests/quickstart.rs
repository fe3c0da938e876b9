//! `scripts/quickstart` with fake clients: what it refuses, and which of its calls change a cluster.

mod fakes;

use fakes::{Fakes, Ran};

use serde_json::Value;

use crate::helm::{read, with, yaml};

const DOWN: [&str; 3] = ["--down", "--context", "prod"];
const GIVEN: [&str; 4] = ["--context", "prod", "--image", "example.com/cni-plugin:v1"];

fn assert_refused(ran: &Ran, sentences: &[&str]) {
    assert!(!ran.success, "{ran:?}");
    for sentence in sentences {
        assert!(ran.said.contains(sentence), "{sentence:?}: {ran:?}");
    }
    assert_eq!(ran.changes(), [""; 0], "{ran:?}");
}

#[test]
fn an_old_bash_or_another_shell_is_refused_before_the_script_is_parsed() {
    let fakes = Fakes::new();
    let script = fakes::script();
    // bash sets BASH_VERSION itself when it starts.
    let old = format!("BASH_VERSION='3.2.57(1)-release'; source {}", script.display());
    assert_refused(&fakes.shell("bash", &["-c", &old]), &["bash 5", "3.2.57"]);
    let other = fakes.shell("sh", &[script.to_str().unwrap()]);
    assert_refused(&other, &["bash 5", "another shell"]);
}

#[test]
fn a_machine_that_cannot_have_a_cluster_is_told_what_works_there() {
    for case in yaml(include_str!("quickstart/cases.yaml"))["machines"].as_array().unwrap() {
        let fakes = Fakes::new().without(&words(&case["without"]));
        let [program, body] = words(&case["program"])[..] else { panic!("{case}") };
        fakes.program(program, body);
        let ran = fakes.on(case["system"].as_str().unwrap(), &[]);
        assert_refused(&ran, &words(&case["refused"]));
    }
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn each_case_of_arguments_objects_and_clients_is_refused_or_removed_as_recorded() {
    for (name, steps) in yaml(include_str!("quickstart/cases.yaml"))["steps"].as_object().unwrap() {
        println!("{name}");
        let fakes = Fakes::new();
        for step in steps.as_array().unwrap() {
            if let [program, body] = words(&step["program"])[..] {
                fakes.program(program, body);
            }
            if let [list, line] = words(&step["object"])[..] {
                fakes.object(list, line);
            }
            let Some(line) = step["run"].as_str() else { continue };
            let ran = fakes.run(&line.split_whitespace().collect::<Vec<_>>());
            if step.get("refused").is_some() {
                assert_refused(&ran, &words(&step["refused"]));
            }
            for text in words(&step["says"]) {
                assert!(ran.success && ran.said.contains(text), "{text}: {ran:?}");
            }
            if let [call, parts @ ..] = &words(&step["calls"])[..] {
                let call = ran.call(call);
                assert!(parts.iter().all(|part| call.contains(part)), "{call}");
            }
            assert!(step["changes"] != "nothing" || ran.changes().is_empty(), "{ran:?}");
        }
    }
}

#[test]
fn an_exported_kubeconfig_is_not_used_without_context() {
    let fakes = Fakes::new();
    let ran = fakes.run(&[]);
    assert!(ran.said.contains("KUBECONFIG is ignored"), "{ran:?}");
    assert!(ran.calls.iter().any(|call| call.starts_with("kubectl")), "{ran:?}");
    for call in ran.calls.iter().chain(&fakes.run(&["--down"]).calls) {
        assert!(!call.contains(fakes::USERS_KUBECONFIG), "{call}");
    }
}

#[test]
fn every_foreign_object_of_linkerd_cni_is_named_and_nothing_is_changed() {
    for case in yaml(include_str!("quickstart/cases.yaml"))["foreign"].as_array().unwrap() {
        let [list, line, name] = words(case)[..] else { panic!("{case}") };
        let fakes = Fakes::new();
        fakes.object(list, line);
        let texts = [name, "quickstart did not create", "Nothing was changed", "context prod"];
        assert_refused(&fakes.run(&GIVEN), &texts);
        removes_nothing(&fakes.run(&DOWN), name);
    }
}

fn removes_nothing(down: &Ran, name: &str) {
    assert!(down.success, "{down:?}");
    assert_eq!(down.changes(), [""; 0], "{down:?}");
    for text in ["nothing that quickstart created", name] {
        assert!(down.said.contains(text), "{down:?}");
    }
}

#[test]
fn a_given_cluster_gets_the_release_with_label_and_image_by_its_context_alone() {
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
fn an_image_with_a_tag_a_digest_or_both_is_the_one_of_the_release() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let [by_digest, by_both] =
        ["a.b/cni-plugin", "a.b/cni-plugin:v2"].map(|n| format!("{n}@{digest}"));
    let default = concat!("a.b/cni-plugin:v", env!("CARGO_PKG_VERSION"), "@");
    for (image, rendered) in [
        ("a.b/cni-plugin:v2", "a.b/cni-plugin:v2"),
        (&by_digest, &format!("{default}{digest}")),
        (&by_both, &by_both),
    ] {
        let fakes = Fakes::new();
        let ran = fakes.run(&["--context", "prod", "--image", image]);
        assert!(ran.success, "{ran:?}");
        let values = yaml(&read(fakes.cache().join("quickstart/values.json")));
        assert_eq!(with(values).container("install-cni")["image"], rendered);
    }
}

#[test]
fn kind_needs_only_docker_kind_kubectl_and_helm_and_down_removes_its_cluster_alone() {
    let fakes = Fakes::new().without(&["cargo", "rustc", "go", "python3"]);
    let ran = fakes.run(&[]);
    let name = ran.call("kind create cluster");
    let name = name.split(' ').find(|word| word.starts_with("linkerd2-cni-quickstart-"));
    let name = name.unwrap().to_owned();
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
    removes_nothing(&fakes.run(&["--down"]), "");

    // A creation that was interrupted left a cluster, too.
    fakes.program("kind-create", "exit 1");
    assert!(!fakes.run(&[]).success);
    fakes.run(&["--down"]).call("kind delete cluster");
}

/// A record with the name of another cluster must not have that cluster deleted.
#[test]
fn down_deletes_no_kind_cluster_of_another_name_than_quickstarts() {
    let fakes = Fakes::new();
    fakes.kind_cluster("kind");
    let records = fakes.cache().join("quickstart");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(records.join("kind-name"), "kind\n").unwrap();
    assert_refused(&fakes.run(&["--down"]), &["kind-name", "\"kind\""]);
    assert_refused(&fakes.run(&[]), &["kind-name", "\"kind\""]);
}

#[test]
fn quickstart_works_without_home_and_flock_and_quotes_the_commands_that_it_prints() {
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
fn a_second_run_with_the_same_cache_waits_for_the_first_one() {
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
