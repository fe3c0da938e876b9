//! `scripts/release.d/publish`, as the workflow `release` runs it, with a `gh` that answers from
//! files. In the tests of attacks, the other programs only print what they would do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{VERSION, must, printed, repository};

const COMMIT: &str = "1111111111111111111111111111111111111111";
const SIGNER: &str = "release@example.com";
/// `gh` of the test. Its files have the names of the requests, with `_` for other characters.
const GH: &str = include_str!("publish/gh");
/// `skopeo`, `helm` and `cosign` of the attacks: no registry has anything, and nothing is pushed.
const PUSHES: &str = include_str!("publish/registry");

/// The script's input: files, variables, and the answers of GitHub.
pub struct Publication {
    work: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Publication {
    /// Creates a publication with a copy of the folder.
    pub fn of(folder: &Path) -> Publication {
        let work = TempDir::new().unwrap();
        let path = |name: &str| work.path().join(name);
        for directory in ["bin", "state/assets", "home/.config/containers"] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        must(Command::new("cp").arg("-r").arg(folder).arg(path("folder")));
        testkit::write_program(path("bin/gh"), GH);
        let sums = must(Command::new("sha256sum").arg(path("folder/SHA256SUMS")));
        let tools = must(Command::new(repository().join("scripts/tools")).arg("--path"));
        let search = std::env::var("PATH").unwrap();
        let variables = vec![
            ("GITHUB_REF_NAME", format!("v{VERSION}")),
            ("GITHUB_REPOSITORY", "linkerd/linkerd2-cni".into()),
            ("GITHUB_SHA", COMMIT.into()),
            ("CHECKSUM", sums[..64].to_owned()),
            ("REBUILD_CHECKSUM", sums[..64].to_owned()),
            ("TAG_SIGNERS", format!("other@example.com {SIGNER}")),
            ("GH_TOKEN", "github".into()),
            ("REGISTRY", "localhost:1/linkerd".into()),
            ("REGISTRY_USER", "user".into()),
            ("REGISTRY_TOKEN", "registry-token".into()),
            ("ANSWER", "manifest unknown".into()),
            ("PATH", format!("{}:{}:{search}", path("bin").display(), tools.trim_end())),
            ("STATE", path("state").display().to_string()),
            ("HOME", path("home").display().to_string()),
        ];
        let publication = Publication { work, variables };
        publication.answer(
            &format!("git/ref/tags/v{VERSION}"),
            &json!({"object": {"type": "tag", "sha": "2222"}}),
        );
        publication.answer("git/tags/2222", &tag_object());
        publication.answer_tests(1);
        publication
    }

    /// Creates a publication with a folder of a few small files, and without a registry.
    fn small() -> Publication {
        let folder = TempDir::new().unwrap();
        for (name, text) in [
            (format!("cni-plugin-v{VERSION}.digest"), "cr.l5d.io/a@sha256:aa\n"),
            ("linkerd2-cni-2026.12.0.tgz".into(), "chart"),
            ("install-cni.yaml".into(), "      image: cr.l5d.io/a:v1@sha256:aa\n"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let sums = must(Command::new("sh").args(["-c", "sha256sum *"]).current_dir(&folder));
        fs::write(folder.path().join("SHA256SUMS"), sums).unwrap();
        let publication = Publication::of(folder.path());
        for program in ["skopeo", "helm", "cosign"] {
            testkit::write_program(publication.path("bin").join(program), PUSHES);
        }
        publication
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    pub fn set(&mut self, name: &'static str, value: &str) {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.into()));
    }

    /// Sets GitHub's answer to a request about the repository.
    fn answer(&self, request: &str, answer: &Value) {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.';
        let path = format!("repos/linkerd/linkerd2-cni/{request}");
        let name = path.replace(|c: char| !is_allowed(c), "_");
        fs::write(self.path("state").join(name), answer.to_string()).unwrap();
    }

    /// Sets how often the workflow `test` passed for the commit on main.
    fn answer_tests(&self, passed: u32) {
        let query = format!("head_sha={COMMIT}&branch=main&event=push&status=success");
        let request = format!("actions/workflows/test.yml/runs?{query}");
        self.answer(&request, &json!({"total_count": passed}));
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.variables.clone());
        command
    }

    pub fn run(&self) -> Output {
        let script = repository().join("scripts/release.d/publish");
        self.command(script).arg(self.path("folder")).output().unwrap()
    }

    /// Runs the script. Fails unless it refuses for this reason, and pushes nothing.
    pub fn must_refuse(&self, reason: &str) {
        let output = self.run();
        assert!(!output.status.success(), "not refused: {reason}");
        let text = printed(&output);
        assert!(text.contains(reason) && !text.contains("would push"), "{reason}: {text}");
    }

    fn would_push(&self) -> bool {
        printed(&self.run()).contains("would push")
    }
}

fn tag_object() -> Value {
    json!({"verification": {"verified": true}, "object": {"sha": COMMIT}, "tagger": {"email": SIGNER}})
}

#[test]
fn folder_that_another_machine_cannot_reproduce_is_refused() {
    let mut publication = Publication::small();
    publication.set("REBUILD_CHECKSUM", &"a".repeat(64));
    publication.must_refuse("the jobs build and rebuild made different files");
    publication.set("REBUILD_CHECKSUM", "");
    publication.must_refuse("REBUILD_CHECKSUM: parameter null or not set");
}

#[test]
fn folder_that_another_job_changed_is_refused() {
    assert!(Publication::small().would_push());
    let chart = "linkerd2-cni-2026.12.0.tgz";

    let changed = Publication::small();
    fs::write(changed.path("folder").join(chart), "of the attacker").unwrap();
    changed.must_refuse("the files are not those that the job build made");

    // The checksums match the changed folder.
    let sums = must(
        Command::new("sh").args(["-c", "sha256sum [!S]*"]).current_dir(changed.path("folder")),
    );
    fs::write(changed.path("folder/SHA256SUMS"), sums).unwrap();
    changed.must_refuse("SHA256SUMS is not the file that the job build made");

    let added = Publication::small();
    fs::write(added.path("folder/.added"), "").unwrap();
    added.must_refuse("the folder has other files than SHA256SUMS");

    let missing = Publication::small();
    fs::remove_file(missing.path("folder").join(chart)).unwrap();
    missing.must_refuse("the files are not those that the job build made");
}

#[test]
fn tag_without_a_managers_signature_or_a_green_test_is_refused() {
    let publication = Publication::small();
    let reference = format!("git/ref/tags/v{VERSION}");
    publication.answer(&reference, &json!({"object": {"type": "commit", "sha": COMMIT}}));
    publication.must_refuse("is a tag without signature");
    fs::remove_dir_all(publication.path("state")).unwrap();
    publication.must_refuse("No such file");

    for (pointer, value, reason) in [
        ("/verification/verified", json!(false), "GitHub cannot verify the signature"),
        ("/object/sha", json!("3333"), "is on commit 3333, not on 1111"),
        ("/tagger/email", json!("someone@example.com"), "signed by someone@example.com"),
        ("/tagger/email", json!("example.com"), "signed by example.com"),
        ("/tagger/email", json!(""), "whom the variable TAG_SIGNERS does not name"),
        ("/tagger/email", json!(format!("other@example.com {SIGNER}")), "does not name"),
    ] {
        let publication = Publication::small();
        let mut tag = tag_object();
        *tag.pointer_mut(pointer).unwrap() = value;
        publication.answer("git/tags/2222", &tag);
        publication.must_refuse(reason);
    }

    let mut publication = Publication::small();
    publication.set("TAG_SIGNERS", "");
    publication.must_refuse("whom the variable TAG_SIGNERS does not name");

    let publication = Publication::small();
    publication.answer_tests(0);
    publication.must_refuse("the workflow test has not passed on main");
}

#[test]
fn version_that_is_or_may_be_published_is_refused() {
    let mut publication = Publication::small();
    fs::write(publication.path("state/release"), "false\n").unwrap();
    publication.must_refuse("has a GitHub release already");
    fs::remove_file(publication.path("state/release")).unwrap();

    // Registries that hide missing repositories give these answers to a login that may create them.
    for answer in [
        "unauthorized: authentication required",
        "denied: requested access to the resource is denied",
        "invalid status code from registry 403 (Forbidden)",
    ] {
        publication.set("ANSWER", answer);
        publication.set("FIRST_PUBLICATION", "");
        publication.must_refuse(&format!("set the variable FIRST_PUBLICATION to v{VERSION}"));
        // An earlier release's value.
        publication.set("FIRST_PUBLICATION", "v1.0.0");
        publication.must_refuse("the registry refuses to look for it");
        publication.set("FIRST_PUBLICATION", &format!("v{VERSION}"));
        assert!(publication.would_push(), "{answer}");
    }
    publication.set("ANSWER", "dial tcp 127.0.0.1:1: connect: connection refused");
    publication.must_refuse("cannot tell whether it exists");
    publication.set("REGISTRY_TOKEN", "");
    publication.must_refuse("has no secret REGISTRY_TOKEN");
    publication.set("REGISTRY", "");
    publication.must_refuse("has a variable REGISTRY, so v");
}
