//! Tests the settings of the API server in the plugin's kubeconfig: its address, the name in its
//! certificate, and credential files that cannot be read.

use std::fs::{self, File};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rcgen::CertificateParams;
use serde_json::json;

use super::api::Api;
use super::{Call, MESHED, NAMESPACE, NAMESPACE_PATH, POD_PATH, Scene};

/// Starts an API server with a meshed pod. Its certificate is valid only for `name`.
fn start_api_named(name: &str) -> Api {
    let api = Api::with_certificate(&CertificateParams::new([name.into()]).unwrap());
    api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
    api
}

/// Returns an ADD whose kubeconfig has `new` in place of `old`.
fn add_with_kubeconfig(scene: &Scene, old: &str, new: &str) -> Call {
    let call = scene.add();
    let kubeconfig = scene.api.kubeconfig();
    assert!(kubeconfig.contains(old), "{old}");
    fs::write(call.kubeconfig(), kubeconfig.replace(old, new)).unwrap();
    call
}

#[test]
fn certificate_must_match_the_tls_server_name() {
    let scene = Scene::with_api(start_api_named("api.example"));
    let add_with_line = |line: &str| {
        let server = format!("    server: https://{}\n", scene.api.address);
        add_with_kubeconfig(&scene, &server, &format!("{server}{line}"))
    };
    add_with_line("    tls-server-name: api.example\n").run().succeeded();
    assert!(!scene.rules().is_empty());
    for line in ["    tls-server-name: other.example\n", ""] {
        add_with_line(line).run().failed(101, "not valid for name");
    }
}

#[test]
fn host_name_in_the_kubeconfig_is_rejected_without_being_resolved() {
    let scene = Scene::with_api(start_api_named("localhost"));
    let call = || {
        let port = scene.api.address.port();
        add_with_kubeconfig(&scene, &scene.api.address.to_string(), &format!("localhost:{port}"))
    };
    let outcome = call().run();
    let outcome = outcome.failed(100, "the host localhost is not an IP address");
    outcome.advises("the linkerd-cni agent on this node writes the kubeconfig");
    assert_eq!(scene.rules(), "");
    assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());
}

#[test]
fn error_names_an_oversized_or_irregular_credential_file() {
    let scene = Scene::meshed();
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    let fifo = dir.path().join("fifo");
    File::create(&large).unwrap().set_len(64 << 20).unwrap();
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    for (path, reason) in [(&large, "is larger than 5 MiB"), (&fifo, "is not a regular file")] {
        let expected = format!("{} {reason}", path.display());
        let call = scene.add();
        let add_with_key = |old: &str, key: &str| {
            let line = format!("{key}: {}", path.display());
            add_with_kubeconfig(&scene, old, &line)
        };
        let kubeconfig = scene.api.kubeconfig();
        let ca = kubeconfig.lines().find(|line| line.contains("certificate-authority-data"));
        let token = format!("token: {}", super::api::TOKEN);
        for call in [
            call.set("kubernetes", json!({"kubeconfig": path})),
            add_with_key(ca.unwrap().trim(), "certificate-authority"),
            add_with_key(&token, "tokenFile"),
        ] {
            call.run().failed(100, &expected);
        }
    }
}
