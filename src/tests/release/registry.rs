//! The release folder is published in a registry of this machine, by `scripts/release.d/publish`
//! with cosign and skopeo.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use testkit::child::KilledOnDrop;
use testkit::until::until_within;

use crate::folder::names;
use crate::publish::Publication;
use crate::{VERSION, must, printed, release, repository};

/// Debian's docker-registry with TLS. Dropping the value ends it.
struct Registry {
    work: TempDir,
    port: u16,
    child: Option<KilledOnDrop>,
}

impl Registry {
    fn new() -> Registry {
        let work = TempDir::new().unwrap();
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(work.path().join("cert.pem"), pair.cert.pem()).unwrap();
        fs::write(work.path().join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
        // The password of "user" is "registry-token".
        let user = "user:$2y$05$abcdefghijklmnopqrstuuWe9O2EmrUpl5vYQmnPMAxa7nycxj1Xm\n";
        fs::write(work.path().join("htpasswd"), user).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Registry { work, port, child: None }
    }

    /// Starts or restarts the registry. Clients of a public registry can pull and push without a
    /// login.
    fn start(&mut self, is_public: bool) {
        self.child = None;
        let path = |name: &str| self.work.path().join(name).display().to_string();
        let mut config = json!({
            "version": "0.1", "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": path("storage")}},
            "http": {
                "addr": format!("127.0.0.1:{}", self.port),
                "tls": {"certificate": path("cert.pem"), "key": path("key.pem")},
            },
        });
        if !is_public {
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path("htpasswd")}});
        }
        fs::write(path("config.yml"), config.to_string()).unwrap();
        let mut serve = Command::new("docker-registry");
        serve.arg("serve").arg(path("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(KilledOnDrop(serve.spawn().unwrap()));
        until_within(Duration::from_secs(20), "the registry listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }
}

#[test]
fn release_is_published_after_failures_and_verified_as_documented() {
    let mut registry = Registry::new();
    let mut publication = Publication::of(&release());
    let prefix = format!("localhost:{}/linkerd", registry.port);
    publication.set("REGISTRY", &prefix);
    publication.set("SSL_CERT_FILE", &registry.work.path().join("cert.pem").display().to_string());
    publication.set("COSIGN_PASSWORD", "");
    // The name in the chart leads to the registry.
    let redirect =
        format!("[[registry]]\nprefix = \"cr.l5d.io/linkerd\"\nlocation = \"{prefix}\"\n");
    fs::write(publication.path("home/.config/containers/registries.conf"), redirect).unwrap();
    must(
        publication
            .command("cosign")
            .arg("generate-key-pair")
            .current_dir(publication.path("home")),
    );
    publication.set("SIGNING_KEY", &publication.path("home/cosign.key").display().to_string());

    // The first publication finds a private registry, and is refused.
    registry.start(false);
    publication.must_refuse("is not the image that was pushed");
    // The second publication fails at its end.
    registry.start(true);
    fs::write(publication.path("state/breaks"), "").unwrap();
    publication.must_refuse("HTTP 502");
    let inspect = |name: &str| {
        let mut skopeo = publication.command("skopeo");
        skopeo.args(["inspect", "--raw"]).arg(format!("docker://{prefix}/{name}"));
        must(&mut skopeo)
    };
    let chart_name = format!("charts/linkerd2-cni:{}", chart_version());
    let manifest = inspect(&chart_name);
    let output = publication.run();
    assert!(output.status.success(), "{}", printed(&output));
    assert!(inspect(&chart_name) == manifest, "the chart was pushed again");
    publication.must_refuse("has a GitHub release already");

    let assets = publication.path("state/assets");
    let mut published = names(&assets);
    published.retain(|name| !name.ends_with(".sigstore.json"));
    assert_eq!(published, names(&release()));
    let verified = verify(&publication, &prefix, "cosign.pub");
    assert!(verified.status.success(), "{}", printed(&verified));

    // The verification fails with another key, and for other bytes.
    let mut generate = publication.command("cosign");
    generate.args(["generate-key-pair", "--output-key-prefix=other"]);
    must(generate.current_dir(publication.path("home")));
    assert!(!verify(&publication, &prefix, "other.pub").status.success());
    fs::write(assets.join("SHA256SUMS"), "").unwrap();
    assert!(!verify(&publication, &prefix, "cosign.pub").status.success());

    // The version is taken, by another chart and then by another image.
    fs::remove_file(publication.path("state/release")).unwrap();
    let other = publication.path("other");
    fs::create_dir(&other).unwrap();
    let file = format!("linkerd2-cni-{}.tgz", chart_version());
    must(Command::new("tar").arg("-xzf").arg(release().join(&file)).arg("-C").arg(&other));
    fs::write(other.join("linkerd2-cni/added"), "").unwrap();
    let package = ["package", "linkerd2-cni", "--destination", "."];
    must(publication.command("helm").args(package).current_dir(&other));
    let push = ["push", &file, &format!("oci://{prefix}/charts")];
    must(publication.command("helm").args(push).current_dir(&other));
    publication.must_refuse("the registry has another chart");
    // Without --all, skopeo copies the image of one platform only.
    let image = format!("docker://{prefix}/cni-plugin:v{VERSION}");
    must(publication.command("skopeo").args(["copy", &image, &image]));
    publication.must_refuse(&format!("{prefix}/cni-plugin:v{VERSION} is sha256:"));
}

fn chart_version() -> String {
    let names = names(&release());
    let chart =
        names.iter().find_map(|name| name.strip_prefix("linkerd2-cni-")?.strip_suffix(".tgz"));
    chart.unwrap().to_owned()
}

/// Runs the commands of the page on the files of the GitHub release, with a key instead of the
/// workflow's identity.
fn verify(publication: &Publication, prefix: &str, key: &str) -> Output {
    let page = fs::read_to_string(repository().join("docs/maintainers/release.md")).unwrap();
    let block = page.split("```sh\n").find(|block| block.starts_with("signer=(")).unwrap();
    let (signer, commands) = block.split("```").next().unwrap().split_once(")\n").unwrap();
    assert!(signer.contains("--certificate-identity"), "{signer}");
    assert!(commands.matches("\"${signer[@]}\"").count() >= 5, "{commands}");
    let key = publication.path("home").join(key).display().to_string();
    let commands = commands
        .replace("v2.0.0", &format!("v{VERSION}"))
        .replace("REGISTRY", prefix)
        .replace("CHART", &chart_version());
    let script = format!("signer=(--key {key} --insecure-ignore-tlog)\n{commands}");
    let mut shell = publication.command("bash");
    shell.args(["-euo", "pipefail", "-c", &script]).current_dir(publication.path("state/assets"));
    shell.output().unwrap()
}
