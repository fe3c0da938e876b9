//! The API server in the plugin's kubeconfig: its address, the name in its certificate, and files that
//! cannot be read.

use std::fs::{self, File};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use super::api::Api;
use super::namespaces::Namespaces;
use super::{Call, meshed_api};

/// A call whose kubeconfig has `new` in place of `old`.
fn call_with(namespaces: &Namespaces, api: &Api, old: &str, new: &str) -> Call {
    let call = Call::new("ADD", &namespaces.path(), api);
    let kubeconfig = api.kubeconfig();
    assert!(kubeconfig.contains(old), "{old}");
    fs::write(call.kubeconfig(), kubeconfig.replace(old, new)).unwrap();
    call
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
