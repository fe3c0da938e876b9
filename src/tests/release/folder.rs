//! The files of a release, and that they agree with each other. The programs in an image: that of
//! `LINKERD2_CNI_IMAGE`, as `scripts/test` makes it without a release, or those of the folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::{VERSION, must, release, repository};

const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
/// Published programs.
const PROGRAMS: [&str; 3] = ["linkerd-cni", "linkerd2-cni-install", "linkerd-cni-cli"];
/// Programs in the image, and their directories there.
const IN_IMAGE: [(&str, &str); 2] =
    [("linkerd-cni", "opt/cni/bin"), ("linkerd2-cni-install", "usr/bin")];

pub fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn sha256(path: &Path) -> String {
    must(Command::new("sha256sum").arg(path)).split(' ').next().unwrap().into()
}

fn unpacked(archive: &Path) -> TempDir {
    let directory = TempDir::new().unwrap();
    must(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(directory.path()));
    directory
}

/// The file of a descriptor in an OCI layout.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    assert_eq!(format!("sha256:{}", sha256(&path)), digest);
    assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
    path
}

/// The file of a name for an architecture.
fn file(name: &str, architecture: &str) -> PathBuf {
    release().join(format!("{name}-v{VERSION}-linux-{architecture}"))
}

fn archive(architecture: &str) -> PathBuf {
    file("cni-plugin", &format!("{architecture}.tar"))
}

/// The OCI layout with the image index, and its descriptor.
fn index() -> (TempDir, Value) {
    let layout = unpacked(&release().join(format!("cni-plugin-v{VERSION}-oci.tar")));
    let descriptor = json(layout.path().join("index.json"))["manifests"][0].clone();
    (layout, descriptor)
}

const IMAGE: &str = "cr.l5d.io/linkerd/cni-plugin:vVERSION";

/// The digest of the image index, as a registry computes it.
fn image_digest() -> String {
    let (layout, descriptor) = index();
    format!("sha256:{}", sha256(&blob(layout.path(), &descriptor)))
}

#[test]
fn checksums_name_every_file() {
    must(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(release()));
    let sums = fs::read_to_string(release().join("SHA256SUMS")).unwrap();
    let mut listed: BTreeSet<_> =
        sums.lines().map(|line| line.split("  ").nth(1).unwrap().to_string()).collect();
    listed.insert("SHA256SUMS".into());
    assert_eq!(listed, names(&release()));
}

#[test]
fn the_image_index_has_the_images_of_both_architectures() {
    let (joined, descriptor) = index();
    let index = json(blob(joined.path(), &descriptor));
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), ARCHITECTURES.len());
    for (descriptor, architecture) in manifests.iter().zip(ARCHITECTURES) {
        assert_eq!(descriptor["platform"]["architecture"], architecture);
        let manifest = json(blob(joined.path(), descriptor));
        let config = json(blob(joined.path(), &manifest["config"]));
        assert_eq!(config["architecture"], architecture);
        let layer = unpacked(&blob(joined.path(), &manifest["layers"][0]));
        for (program, directory) in IN_IMAGE {
            let published = file(program, architecture);
            assert_eq!(sha256(&layer.path().join(directory).join(program)), sha256(&published));
        }
        for licence in ["LICENSE", "THIRD-PARTY-NOTICES.txt"] {
            let in_image = sha256(&layer.path().join("linkerd").join(licence));
            assert_eq!(in_image, sha256(&repository().join(licence)));
            assert_eq!(in_image, sha256(&release().join(licence)));
        }
        // docker and containerd load the same image.
        let alone = unpacked(&archive(architecture));
        let alone = json(alone.path().join("index.json"));
        assert_eq!(alone["manifests"][0]["digest"], descriptor["digest"]);
    }
}

/// The machine and the kinds of segments of a program.
fn headers(program: &Path) -> String {
    let mut readelf = Command::new("readelf");
    readelf.args(["--wide", "--file-header", "--program-headers"]).arg(program).env("LC_ALL", "C");
    must(&mut readelf)
}

#[test]
fn programs_are_static_executables_for_their_architecture() {
    // This test program is dynamic: it has a dynamic linker.
    assert!(headers(Path::new("/proc/self/exe")).contains(" INTERP "));
    for (architecture, machine) in ARCHITECTURES.into_iter().zip(["X86-64", "AArch64"]) {
        for program in PROGRAMS {
            let headers = headers(&file(program, architecture));
            assert!(headers.contains(machine) && headers.contains(" LOAD "), "{headers}");
            assert!(!headers.contains(" INTERP "), "{program} {architecture}");
        }
    }
}

#[test]
fn sboms_have_every_crate_that_is_compiled_in() {
    for architecture in ARCHITECTURES {
        let target = match architecture {
            "amd64" => "x86_64-unknown-linux-gnu",
            _ => "aarch64-unknown-linux-gnu",
        };
        let tree = "tree --locked --edges=normal --prefix=none --format={p} --target";
        let mut cargo = Command::new("cargo");
        cargo.current_dir(repository()).args(tree.split(' ')).arg(target);
        let tree = must(&mut cargo);
        let crates: BTreeSet<_> = tree
            .lines()
            .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join("@").replace("@v", "@"))
            .collect();
        let [cyclonedx, spdx] = ["cdx", "spdx"]
            .map(|format| json(file("linkerd2-cni", &format!("{architecture}.{format}.json"))));
        let listed = |list: &Value, version: &str| -> BTreeSet<String> {
            let entries = list.as_array().unwrap().iter();
            entries
                .map(|entry| format!("{}@{}", entry["name"], entry[version]).replace('"', ""))
                .collect()
        };
        let components = listed(&cyclonedx["components"], "version");
        assert_eq!(crates.difference(&components).next(), None);
        assert_eq!(listed(&spdx["packages"], "versionInfo"), components);
        // Besides crates: Rust's standard library, glibc, libgcc, two archives and the programs.
        assert_eq!(components.len(), crates.len() + 3 + 2 + PROGRAMS.len(), "{components:?}");
        for program in PROGRAMS {
            let path = file(program, architecture);
            let name = path.file_name().unwrap().to_str().unwrap();
            let mut components = cyclonedx["components"].as_array().unwrap().iter();
            let component = components.find(|entry| entry["name"] == name).unwrap();
            assert_eq!(component["hashes"][0]["content"], sha256(&path));
        }
    }
}

#[test]
fn the_provenance_names_commit_files_compilers_and_libraries() {
    let name = format!("linkerd2-cni-v{VERSION}.intoto.json");
    let statement = json(release().join(&name));
    let mut subjects = BTreeSet::from([name, "SHA256SUMS".into()]);
    let mut has_image = false;
    for subject in statement["subject"].as_array().unwrap() {
        let file = subject["name"].as_str().unwrap();
        if file == IMAGE.replace("VERSION", VERSION) {
            let digest = subject["digest"]["sha256"].as_str().unwrap();
            assert_eq!(image_digest(), format!("sha256:{digest}"));
            has_image = true;
            continue;
        }
        assert_eq!(subject["digest"]["sha256"], sha256(&release().join(file)), "{file}");
        subjects.insert(file.into());
    }
    assert_eq!(subjects, names(&release()));
    assert!(has_image);
    let sources = &statement["predicate"]["buildDefinition"]["resolvedDependencies"];
    let named = |source: &Value| source["name"].as_str().map(str::to_owned);
    let names: BTreeSet<_> = sources.as_array().unwrap().iter().filter_map(named).collect();
    for name in ["rustc", "cargo", "helm", "gcc-12", "binutils", "libc6-dev", "spdx-tools"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("libc6-dev-") && name.ends_with("-cross")));
    let commit = sources[0]["digest"]["gitCommit"].as_str().unwrap();
    let git =
        |args: &[&str]| Command::new("git").current_dir(repository()).args(args).output().unwrap();
    // A commit of this branch, or with the uncommitted changes the child of one.
    let released = [commit.to_owned(), format!("{commit}^")];
    let mut of_branch = released.iter();
    assert!(
        of_branch.any(|name| git(&["merge-base", "--is-ancestor", name, "HEAD"]).status.success()),
        "{commit} is no commit of this branch"
    );
    let lock = git(&["show", &format!("{commit}:Cargo.lock")]);
    let work = TempDir::new().unwrap();
    fs::write(work.path().join("Cargo.lock"), lock.stdout).unwrap();
    assert_eq!(sources[1]["digest"]["sha256"], sha256(&work.path().join("Cargo.lock")));
}

#[test]
fn index_chart_manifest_and_digest_file_name_the_same_chart_and_image() {
    let charts: Vec<_> =
        names(&release()).into_iter().filter(|name| name.ends_with(".tgz")).collect();
    let [chart] = &charts[..] else { panic!("{charts:?}") };
    let index = fs::read_to_string(release().join("index.yaml")).unwrap();
    let index: Value = serde_saphyr::from_str(&index).unwrap();
    let entry = &index["entries"]["linkerd2-cni"][0];
    assert_eq!(entry["urls"][0], **chart);
    assert_eq!(entry["digest"], sha256(&release().join(chart)));
    assert_eq!(entry["appVersion"], format!("v{VERSION}"));
    // All name the image by the digest that the registry will have.
    let pinned = format!("{}@{}", IMAGE.replace("VERSION", VERSION), image_digest());
    let file = release().join(format!("cni-plugin-v{VERSION}.digest"));
    assert_eq!(fs::read_to_string(file).unwrap(), format!("{pinned}\n"));
    let manifest = fs::read_to_string(release().join("install-cni.yaml")).unwrap();
    let images: Vec<_> = manifest.lines().filter_map(|line| line.split_once("image: ")).collect();
    assert!(!images.is_empty() && images.iter().all(|(_, image)| *image == pinned), "{images:?}");
    let templates = |more: &[&str]| {
        let mut helm = Command::new("helm");
        helm.arg("template").arg("linkerd-cni").arg(release().join(chart)).args(more);
        must(&mut helm)
    };
    assert!(templates(&[]).contains(&format!("image: {pinned}\n")));
    // An image with another name or tag has another digest, that of a mirror has the same.
    for value in ["image.name=a.b/c", "image.version=v3.0.0"] {
        let text = templates(&["--set", value]);
        assert!(!text.contains(&image_digest()), "{value}");
    }
    let mirror = pinned.replace("cr.l5d.io/", "registry.example.com/");
    assert!(
        templates(&["--set", "global.imageRegistry=registry.example.com"])
            .contains(&format!("image: {mirror}\n"))
    );
    let archive = templates(&["--set", &format!("image.version=v{VERSION}")]);
    assert!(archive.contains(&format!("image: {}\n", IMAGE.replace("VERSION", VERSION))));
}

#[test]
fn no_published_file_contains_a_path_of_the_build() {
    let home = std::env::var("HOME").unwrap();
    // The last two are parts of the directories in which scripts/release and scripts/compile build.
    let directories = [
        format!("{home}/"),
        format!("{}/", repository().display()),
        ".release-build.".into(),
        "/image-target/".into(),
    ];
    for name in names(&release()) {
        let path = release().join(&name);
        let mut contents = fs::read(&path).unwrap();
        if name.ends_with(".tgz") {
            contents = Command::new("gzip").arg("-dc").arg(&path).output().unwrap().stdout;
        }
        for directory in &directories {
            let bytes = directory.as_bytes();
            let found = contents.windows(bytes.len()).any(|window| window == bytes);
            assert!(!found, "{name} names {directory}");
        }
    }
}

fn images() -> Vec<PathBuf> {
    match std::env::var_os("LINKERD2_CNI_IMAGE") {
        Some(image) => vec![image.into()],
        None => ARCHITECTURES.into_iter().map(archive).collect(),
    }
}

/// What glibc's resolver has in a static program. It loads modules of the host, which belong to
/// another libc.
const RESOLVER: [&str; 4] = ["getaddrinfo", "libnss_%s.so", "/etc/nsswitch.conf", "gethostbyname"];

#[test]
fn the_plugin_has_no_resolver_that_loads_modules_of_the_host() {
    for image in images() {
        let layout = unpacked(&image);
        let index = json(layout.path().join("index.json"));
        let manifest = json(blob(layout.path(), &index["manifests"][0]));
        let layer = unpacked(&blob(layout.path(), &manifest["layers"][0]));
        let resolver_of = |program: &str| {
            let bytes = fs::read(layer.path().join(program)).unwrap();
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            RESOLVER.into_iter().filter(has).collect::<Vec<_>>()
        };
        // The agent resolves names, so the texts can be found.
        assert!(!resolver_of("usr/bin/linkerd2-cni-install").is_empty(), "{}", image.display());
        let found = resolver_of("opt/cni/bin/linkerd-cni");
        assert!(found.is_empty(), "{}: the plugin has {found:?}", image.display());
    }
}
