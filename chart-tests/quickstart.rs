//! `scripts/quickstart` with fake clients: what it refuses, and which of its calls change a cluster.

mod fakes;

use fakes::{Fakes, Ran};

use crate::helm::{read, with, yaml};

const RELEASE: &str = "Secret|linkerd-cni|sh.helm.release.v1.linkerd-cni.v1|";
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
    // Programs that are missing, one with another body, the system, and texts of the refusal.
    for (missing, (program, body), system, texts) in [
        (
            &["kind", "docker"][..],
            ("uname", "echo Darwin"),
            "",
            &["macOS", "docker is not installed", "kind is not installed", "--context NAME"][..],
        ),
        (
            &[],
            ("docker", "exit 1"),
            "ID=fedora\nPRETTY_NAME='Fedora Linux 44'\n",
            &["docker has no running engine", "Fedora Linux 44", "--context NAME"],
        ),
        (
            &["kind"],
            ("id", "echo 1000"),
            "ID=ubuntu\nID_LIKE=debian\n",
            &["kind is not installed", "it needs root"],
        ),
    ] {
        let fakes = Fakes::new().without(missing);
        fakes.program(program, body);
        assert_refused(&fakes.on(system, &[]), texts);
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
    for case in yaml(include_str!("quickstart/foreign.yaml")).as_array().unwrap() {
        let [list, line, name] = [0, 1, 2].map(|index| case[index].as_str().unwrap());
        let fakes = Fakes::new();
        fakes.object(list, line);
        let texts = [name, "quickstart did not create", "Nothing was changed", "context prod"];
        assert_refused(&fakes.run(&GIVEN), &texts);
        removes_nothing(&fakes.run(&DOWN), name);
    }
}

/// Asserts that `--down` succeeded, found nothing of quickstart's, named this object, and changed nothing.
fn removes_nothing(down: &Ran, name: &str) {
    assert!(down.success, "{down:?}");
    assert_eq!(down.changes(), [""; 0], "{down:?}");
    for text in ["nothing that quickstart created", name] {
        assert!(down.said.contains(text), "{down:?}");
    }
}

#[test]
fn down_removes_its_release_also_beside_a_foreign_one_elsewhere() {
    let fakes = Fakes::new();
    fakes.object("secrets", &format!("{RELEASE}true"));
    fakes.object("secrets", "Secret|other|sh.helm.release.v1.linkerd-cni.v1|");
    let down = fakes.run(&DOWN);
    assert!(down.success, "{down:?}");
    let uninstall = down.call("uninstall linkerd-cni");
    assert!(uninstall.contains("-n linkerd-cni"), "{uninstall}");
    assert!(down.said.contains("helm release linkerd-cni in namespace other"), "{down:?}");
}

/// Somebody adopted the release with `helm upgrade --labels linkerd2-cni-quickstart=null`.
#[test]
fn a_release_without_the_label_stays_and_so_does_its_namespace() {
    let fakes = Fakes::new();
    for line in [
        "Namespace||linkerd-cni|true",
        "DaemonSet|linkerd-cni|linkerd-cni|true",
        "ClusterRole||linkerd-cni|true",
    ] {
        fakes.object("namespaces", line);
    }
    fakes.object("secrets", RELEASE);
    assert_refused(&fakes.run(&GIVEN), &["helm release linkerd-cni"]);
    fakes.object("pods", RELEASE);
    let down = fakes.run(&DOWN);
    assert!(down.said.contains("The namespace linkerd-cni stays"), "{down:?}");
    assert_eq!(down.changes(), [""; 0], "{down:?}");
}

#[test]
fn a_cluster_that_cannot_be_listed_is_not_taken_for_an_empty_one() {
    let fakes = Fakes::new();
    fakes.program(
        "kubectl",
        "[[ $1 == config ]] && exit 0; echo 'Error from server (Forbidden): no' >&2; exit 1",
    );
    assert_refused(&fakes.run(&GIVEN), &["Forbidden", "cannot list"]);
    assert_refused(&fakes.run(&DOWN), &["cannot list"]);
}

#[test]
fn a_context_needs_to_exist_and_an_image_that_its_nodes_can_pull() {
    let fakes = Fakes::new();
    assert_refused(&fakes.run(&["--context", "prod"]), &["needs --image REF"]);
    let no_tag = ["--context", "prod", "--image", "example.com/cni-plugin"];
    assert_refused(&fakes.run(&no_tag), &["tag or digest"]);
    fakes.program("kubectl", "exit 1");
    assert_refused(&fakes.run(&GIVEN), &["no context prod"]);
    assert_refused(&fakes.run(&["--context"]), &["quickstart: --context needs a value"]);
    assert_refused(&fakes.run(&["--dwon"]), &["unknown argument: --dwon"]);
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

/// Without the record, a later `--down` would not find the cluster.
#[test]
fn down_without_an_engine_keeps_the_record_of_the_kind_cluster() {
    let fakes = Fakes::new();
    fakes.run(&[]);
    fakes.program("docker", "exit 1");
    assert_refused(&fakes.run(&["--down"]), &["cannot remove the kind cluster"]);
    fakes.program("docker", "exit 0");
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
