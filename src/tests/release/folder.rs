//! Checks the files of a release, and that they agree with each other. Also checks the programs in
//! an image: in that of `LINKERD2_CNI_IMAGE`, as `scripts/test` makes it without a release, or else
//! in those of the folder.

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

fn unpack(archive: &Path) -> TempDir {
    let directory = TempDir::new().unwrap();
    must(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(directory.path()));
    directory
}

/// Returns the file of a descriptor in an OCI layout. Checks its digest and its size.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    assert_eq!(format!("sha256:{}", sha256(&path)), digest);
    assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
    path
}

/// Returns the published file with this name for an architecture.
fn file(name: &str, architecture: &str) -> PathBuf {
    release().join(format!("{name}-v{VERSION}-linux-{architecture}"))
}

fn archive(architecture: &str) -> PathBuf {
    file("cni-plugin", &format!("{architecture}.tar"))
}

/// Unpacks the image of both architectures. Returns the OCI layout, and the descriptor of the image
/// index.
fn unpack_index() -> (TempDir, Value) {
    let layout = unpack(&release().join(format!("cni-plugin-v{VERSION}-oci.tar")));
    let descriptor = json(layout.path().join("index.json"))["manifests"][0].clone();
    (layout, descriptor)
}

const IMAGE: &str = "cr.l5d.io/linkerd/cni-plugin:vVERSION";

/// The digest of the image index, as a registry computes it.
fn image_digest() -> String {
    let (layout, descriptor) = unpack_index();
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
fn image_index_has_the_images_of_both_architectures() {
    let (layout, descriptor) = unpack_index();
    let index = json(blob(layout.path(), &descriptor));
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), ARCHITECTURES.len());
    for (descriptor, architecture) in manifests.iter().zip(ARCHITECTURES) {
        assert_eq!(descriptor["platform"]["architecture"], architecture);
        let manifest = json(blob(layout.path(), descriptor));
        let config = json(blob(layout.path(), &manifest["config"]));
        assert_eq!(config["architecture"], architecture);
        let layer = unpack(&blob(layout.path(), &manifest["layers"][0]));
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
        let single_layout = unpack(&archive(architecture));
        let single_index = json(single_layout.path().join("index.json"));
        assert_eq!(single_index["manifests"][0]["digest"], descriptor["digest"]);
    }
}

/// Returns readelf's lines about the machine and the segments of a program.
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

/// Returns the components of an SBOM as `NAME@VERSION`. `version` is the key of the version.
fn names_with_versions(components: &Value, version: &str) -> BTreeSet<String> {
    let components = components.as_array().unwrap().iter();
    components
        .map(|component| {
            let name = component["name"].as_str().unwrap();
            format!("{name}@{}", component[version].as_str().unwrap_or("null"))
        })
        .collect()
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
        let cyclonedx = json(file("linkerd2-cni", &format!("{architecture}.cdx.json")));
        let spdx = json(file("linkerd2-cni", &format!("{architecture}.spdx.json")));
        let components = names_with_versions(&cyclonedx["components"], "version");
        assert_eq!(crates.difference(&components).next(), None);
        assert_eq!(names_with_versions(&spdx["packages"], "versionInfo"), components);
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
fn provenance_names_commit_files_compilers_and_libraries() {
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
    let sources_list = sources.as_array().unwrap().iter();
    let names: BTreeSet<_> = sources_list.filter_map(|source| source["name"].as_str()).collect();
    for name in ["rustc", "cargo", "helm", "gcc-12", "binutils", "libc6-dev", "spdx-tools"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("libc6-dev-") && name.ends_with("-cross")));
    let commit = sources[0]["digest"]["gitCommit"].as_str().unwrap();
    let git =
        |args: &[&str]| Command::new("git").current_dir(repository()).args(args).output().unwrap();
    // With uncommitted changes, the release is built from a child of a commit of this branch.
    let is_on_branch =
        |revision: &str| git(&["merge-base", "--is-ancestor", revision, "HEAD"]).status.success();
    assert!(
        is_on_branch(commit) || is_on_branch(&format!("{commit}^")),
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
    assert_eq!(charts.len(), 1, "{charts:?}");
    let chart = &charts[0];
    let index = fs::read_to_string(release().join("index.yaml")).unwrap();
    let index: Value = serde_saphyr::from_str(&index).unwrap();
    let entry = &index["entries"]["linkerd2-cni"][0];
    assert_eq!(entry["urls"][0], **chart);
    assert_eq!(entry["digest"], sha256(&release().join(chart)));
    assert_eq!(entry["appVersion"], format!("v{VERSION}"));
    // The files name the image by the digest that the registry will have.
    let pinned = format!("{}@{}", IMAGE.replace("VERSION", VERSION), image_digest());
    let file = release().join(format!("cni-plugin-v{VERSION}.digest"));
    assert_eq!(fs::read_to_string(file).unwrap(), format!("{pinned}\n"));
    let manifest = fs::read_to_string(release().join("install-cni.yaml")).unwrap();
    let images: Vec<_> = manifest.lines().filter_map(|line| line.split_once("image: ")).collect();
    assert!(!images.is_empty() && images.iter().all(|(_, image)| *image == pinned), "{images:?}");
    let render = |options: &[&str]| {
        let mut helm = Command::new("helm");
        helm.arg("template").arg("linkerd-cni").arg(release().join(chart)).args(options);
        must(&mut helm)
    };
    assert!(render(&[]).contains(&format!("image: {pinned}\n")));
    // An image with another name or tag has another digest. The image of a mirror has the same one.
    for value in ["image.name=a.b/c", "image.version=v3.0.0"] {
        let text = render(&["--set", value]);
        assert!(!text.contains(&image_digest()), "{value}");
    }
    let mirror = pinned.replace("cr.l5d.io/", "registry.example.com/");
    assert!(
        render(&["--set", "global.imageRegistry=registry.example.com"])
            .contains(&format!("image: {mirror}\n"))
    );
    let with_version = render(&["--set", &format!("image.version=v{VERSION}")]);
    assert!(with_version.contains(&format!("image: {}\n", IMAGE.replace("VERSION", VERSION))));
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
            let is_contained = contents.windows(bytes.len()).any(|window| window == bytes);
            assert!(!is_contained, "{name} names {directory}");
        }
    }
}

fn images() -> Vec<PathBuf> {
    match std::env::var_os("LINKERD2_CNI_IMAGE") {
        Some(image) => vec![image.into()],
        None => ARCHITECTURES.into_iter().map(archive).collect(),
    }
}

/// Texts of glibc's resolver in a static program. The resolver loads modules of the host, which
/// belong to another libc.
const RESOLVER: [&str; 4] = ["getaddrinfo", "libnss_%s.so", "/etc/nsswitch.conf", "gethostbyname"];

#[test]
fn plugin_contains_no_resolver_of_glibc() {
    for image in images() {
        let layout = unpack(&image);
        let index = json(layout.path().join("index.json"));
        let manifest = json(blob(layout.path(), &index["manifests"][0]));
        let layer = unpack(&blob(layout.path(), &manifest["layers"][0]));
        // The agent resolves names, so the texts can be found.
        let in_agent = resolver_texts(&layer.path().join("usr/bin/linkerd2-cni-install"));
        assert!(!in_agent.is_empty(), "{}", image.display());
        let in_plugin = resolver_texts(&layer.path().join("opt/cni/bin/linkerd-cni"));
        assert!(in_plugin.is_empty(), "{}: the plugin has {in_plugin:?}", image.display());
    }
}

/// Returns the texts of [`RESOLVER`] that the program contains.
fn resolver_texts(program: &Path) -> Vec<&'static str> {
    let bytes = fs::read(program).unwrap();
    let mut texts = RESOLVER.to_vec();
    texts.retain(|text| bytes.windows(text.len()).any(|part| part == text.as_bytes()));
    texts
}
