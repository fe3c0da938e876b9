//! The `Dockerfile` and `.dockerignore`: `docker build` sees only the files that both name.

use std::fs;
use std::process::Command;

use crate::{must, repository};

/// The build in the container, but for the minutes of compiling: what the `Dockerfile` copies
/// suffices for cargo and for scripts/compile, which knows the platform and looks for its compiler.
#[test]
fn the_dockerfile_copies_what_cargo_and_scripts_compile_read() {
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    assert!(dockerfile.contains("FROM --platform=$BUILDPLATFORM "), "the compiler is emulated");
    assert!(dockerfile.contains(" scripts/compile \"$TARGETPLATFORM\" "), "{dockerfile}");
    let admitted = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    let build = dockerfile.split("\nFROM ").nth(1).unwrap();
    let tree = tempfile::tempdir().unwrap();
    for line in build.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let mut words: Vec<_> = line.split(' ').collect();
        let to = tree.path().join(words.pop().unwrap().trim_start_matches('/'));
        for word in &words {
            let root = word.split('/').next().unwrap().replace("Cargo.toml", "Cargo.*");
            let admits = format!("!{}", root.replace("Cargo.lock", "Cargo.*"));
            assert!(admitted.lines().any(|line| line == admits), ".dockerignore: no {admits}");
        }
        fs::create_dir_all(if words.len() > 1 { &to } else { to.parent().unwrap() }).unwrap();
        must(Command::new("cp").arg("-r").args(words).arg(to).current_dir(repository()));
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
