//! The `Dockerfile` and `.dockerignore`: `docker build` sees only the files that both name.

use std::fs;
use std::process::Command;

use crate::{must, repository};

/// Runs the build of the container without compiling, which would take minutes: cargo and
/// scripts/compile find all files among those that the `Dockerfile` copies. scripts/compile looks
/// for the compiler of the platform.
#[test]
fn dockerfile_copies_the_files_of_cargo_and_scripts_compile() {
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    assert!(dockerfile.contains("FROM --platform=$BUILDPLATFORM "), "the compiler is emulated");
    assert!(dockerfile.contains(" scripts/compile \"$TARGETPLATFORM\" "), "{dockerfile}");
    let dockerignore = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    let build = dockerfile.split("\nFROM ").nth(1).unwrap();
    let tree = tempfile::tempdir().unwrap();
    for line in build.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        // The last word is the target.
        let mut sources: Vec<_> = line.split(' ').collect();
        let target = tree.path().join(sources.pop().unwrap().trim_start_matches('/'));
        for source in &sources {
            let root = source.split('/').next().unwrap().replace("Cargo.toml", "Cargo.*");
            let exception = format!("!{}", root.replace("Cargo.lock", "Cargo.*"));
            let has_exception = dockerignore.lines().any(|line| line == exception);
            assert!(has_exception, ".dockerignore: no {exception}");
        }
        let directory = if sources.len() > 1 { &target } else { target.parent().unwrap() };
        fs::create_dir_all(directory).unwrap();
        must(Command::new("cp").arg("-r").args(sources).arg(target).current_dir(repository()));
    }
    for licence in ["LICENSE", "THIRD-PARTY-NOTICES.txt"] {
        assert!(tree.path().join("root-fs/linkerd").join(licence).exists(), "no {licence}");
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(args[0]);
        command
            .args(&args[1..])
            .current_dir(tree.path())
            .env("LINKERD2_CNI_CACHE", tree.path().join("cache"));
        command.output().unwrap()
    };
    let metadata = run(&["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"]);
    assert!(metadata.status.success(), "{metadata:?}");
    let missing = run(&["scripts/tools", "--missing", "cross"]);
    assert!(missing.status.success() && missing.stderr.is_empty(), "{missing:?}");
    let refused = run(&["scripts/compile", "linux/386", "programs", "linkerd-cni"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("the platform linux/386 is not supported"), "{error}");
}
