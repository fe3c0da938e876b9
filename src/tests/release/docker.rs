//! The `Dockerfile` and `.dockerignore`: `docker build` sees only the files that both name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::{must, repository};

const MACROS: [&str; 2] = ["include_str!", "include_bytes!"];

/// Rust sources below a directory, without those of tests.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Resolves `..` without looking at the file system.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => assert!(path.pop()),
            part => path.push(part),
        }
        path
    })
}

/// Directories and files in the repository's root whose contents are compiled into the programs.
fn included_roots() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&repository().join("src"), &mut files);
    let mut roots = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let programs = text.split("#[cfg(test)]").next().unwrap();
        for rest in MACROS.iter().flat_map(|name| programs.split(name).skip(1)) {
            let path = rest.split('"').nth(1).unwrap();
            let path = match path.strip_prefix("$CARGO_MANIFEST_DIR/") {
                Some(path) => repository().join(path),
                None => normalized(&file.parent().unwrap().join(path)),
            };
            let path = path.strip_prefix(repository()).expect("the file is in the repository");
            roots.insert(path.iter().next().unwrap().to_str().unwrap().to_owned());
        }
    }
    roots
}

#[test]
fn docker_gets_every_file_that_is_compiled_into_the_programs() {
    let roots = included_roots();
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let admitted = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    for root in roots.iter().map(String::as_str).chain(["src", "testkit", "scripts"]) {
        let copied = format!("COPY {root} {root}");
        assert!(dockerfile.lines().any(|line| line == copied), "Dockerfile: no {copied}");
        let admits = format!("!{root}");
        assert!(admitted.lines().any(|line| line == admits), ".dockerignore: no {admits}");
    }
    for licence in ["LICENSE", "THIRD-PARTY-NOTICES.txt"] {
        let copied = |line: &str| line.starts_with("COPY ") && line.contains(licence);
        assert!(dockerfile.lines().any(copied), "Dockerfile: no {licence}");
        let admits = format!("!{licence}");
        assert!(admitted.lines().any(|line| line == admits), ".dockerignore: no {admits}");
    }
}

/// The build in the container, but for the minutes of compiling: what the `Dockerfile` copies suffices for cargo and for
/// scripts/compile, which knows the platform and looks for its compiler.
#[test]
fn the_dockerfile_copies_what_cargo_and_scripts_compile_read() {
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    assert!(dockerfile.contains("FROM --platform=$BUILDPLATFORM "), "the compiler is emulated");
    assert!(dockerfile.contains(" scripts/compile \"$TARGETPLATFORM\" "), "{dockerfile}");
    let build = dockerfile.split("\nFROM ").nth(1).unwrap();
    let tree = tempfile::tempdir().unwrap();
    for line in build.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let mut words: Vec<_> = line.split(' ').collect();
        let to = tree.path().join(words.pop().unwrap().trim_start_matches('/'));
        fs::create_dir_all(if words.len() > 1 { &to } else { to.parent().unwrap() }).unwrap();
        must(Command::new("cp").arg("-r").args(words).arg(to).current_dir(repository()));
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
