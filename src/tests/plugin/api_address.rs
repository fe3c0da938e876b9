//! The API server in the plugin's kubeconfig: its address, the name in its certificate, and files that
//! cannot be read.

use std::fs::{self, File};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rcgen::CertificateParams;
use serde_json::json;

use super::api::Api;
use super::namespaces::Namespaces;
use super::{Call, MESHED, NAMESPACE, NAMESPACE_PATH, POD_PATH, meshed_api};

/// An API server with a meshed pod and a certificate for `name` alone.
fn api_named(name: &str) -> Api {
    let api = Api::with(&CertificateParams::new([name.into()]).unwrap());
    api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
    api
}

/// A call whose kubeconfig has `new` in place of `old`.
fn call_with(namespaces: &Namespaces, api: &Api, old: &str, new: &str) -> Call {
    let call = Call::new("ADD", &namespaces.path(), api);
    let kubeconfig = api.kubeconfig();
    assert!(kubeconfig.contains(old), "{old}");
    fs::write(call.kubeconfig(), kubeconfig.replace(old, new)).unwrap();
    call
}

#[test]
fn the_certificate_is_verified_for_the_tls_server_name() {
    let (api, namespaces) = (api_named("api.example"), Namespaces::new());
    let named = |line: &str| {
        let server = format!("    server: https://{}\n", api.address);
        call_with(&namespaces, &api, &server, &format!("{server}{line}"))
    };
    named("    tls-server-name: api.example\n").run().succeeded();
    assert!(!namespaces.nat("iptables-nft").is_empty());
    for line in ["    tls-server-name: other.example\n", ""] {
        let (code, msg) = named(line).run().error();
        assert!(code == 101 && msg.contains("not valid for name"), "{line}: {code} {msg}");
    }
}

#[test]
fn insecure_skip_tls_verify_accepts_a_certificate_of_another_name_and_ca() {
    let (api, namespaces) = (api_named("api.example"), Namespaces::new());
    let kubeconfig = api.kubeconfig();
    let ca = kubeconfig.lines().find(|line| line.contains("certificate-authority-data")).unwrap();
    call_with(&namespaces, &api, ca, "    insecure-skip-tls-verify: true").run().succeeded();
}

#[test]
fn a_host_name_in_the_kubeconfig_is_not_resolved_and_the_error_names_it() {
    let (api, namespaces) = (api_named("localhost"), Namespaces::new());
    let call = || {
        let port = api.address.port();
        call_with(&namespaces, &api, &api.address.to_string(), &format!("localhost:{port}"))
    };
    let outcome = call().run();
    let (code, msg) = outcome.error();
    assert_eq!(code, 100, "{msg}");
    assert!(msg.contains("the host localhost is not an IP address"), "{msg}");
    let details = outcome.json()["details"].to_string();
    assert!(
        details.contains("the linkerd-cni agent on this node writes the kubeconfig"),
        "{details}"
    );
    assert_eq!(namespaces.nat("iptables-nft"), "");

    // As without an API server, a pod that the injector marked starts redirected.
    let marked = json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
    });
    call().annotated(marked).run().succeeded();
    assert!(!namespaces.nat("iptables-nft").is_empty());
    assert!(api.requests().is_empty(), "{:?}", api.requests());
}

#[test]
fn a_kubeconfig_ca_or_token_file_that_is_too_large_or_not_a_file_is_named_with_the_limit() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let dir = tempfile::tempdir().unwrap();
    let (large, fifo) = (dir.path().join("large"), dir.path().join("fifo"));
    File::create(&large).unwrap().set_len(64 << 20).unwrap();
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    for (path, why) in [(&large, "is larger than 5 MiB"), (&fifo, "is not a regular file")] {
        let wanted = format!("{} {why}", path.display());
        let call = Call::new("ADD", &namespaces.path(), &api);
        let replaced = |old: &str, new: &str| {
            let line = format!("{new}: {}", path.display());
            call_with(&namespaces, &api, old, &line)
        };
        let kubeconfig = api.kubeconfig();
        let ca = kubeconfig.lines().find(|line| line.contains("certificate-authority-data"));
        let token = format!("token: {}", super::api::TOKEN);
        for call in [
            call.set("kubernetes", json!({"kubeconfig": path})),
            replaced(ca.unwrap().trim(), "certificate-authority"),
            replaced(&token, "tokenFile"),
        ] {
            let (code, msg) = call.run().error();
            assert!(code == 100 && msg.contains(&wanted), "{code} {msg}");
        }
    }
}
