//! Tests the process of the repair controller: admin server, token, signals, outputs, mounts, and
//! command line.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use linkerd2_cni::kube::plain_http;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use testkit::api::ApiFault;

use crate::api::{Answer, Api};
use crate::controller::{BINARY, Controller};
use crate::mounts::{bind, in_mount_namespace};
use crate::until::until;
use crate::unwritable::{closed, full_device, full_pipe};
use crate::{path, stranded};

#[test]
fn admin_server_on_the_ipv6_wildcard_address_also_serves_ipv4() {
    let api = Api::start();
    let controller = Controller::at("[::]:0", &api, |_| {});
    for host in ["127.0.0.1", "[::1]"] {
        let url = format!("http://{host}:{}/live", controller.port());
        let (_, body) = plain_http::get(&url, Duration::from_secs(10)).unwrap();
        assert_eq!(body, "alive\n", "{host}");
    }
}

#[test]
fn rotated_token_is_used_for_the_next_request() {
    let (api, controller) = Controller::watched();
    api.state().token = Some("second".into());
    api.end_watches();
    controller.until_logged("HTTP 401");
    controller.rotate("second\n");
    until("a watch with the new token", || {
        let has_new_token = |request: &crate::api::Request| request.token() == "second";
        !api.received(has_new_token).is_empty()
    });
    api.modify(&stranded("web-1"));
    controller.until_metric_is("pods_deleted_total", 1);
    assert!(!controller.log().contains("second"), "no token in the log");
}

type Case = (&'static str, fn(&Api), Signal);

#[test]
fn signals_stop_the_controller_immediately_in_every_state() {
    let watching = |_: &Api| {};
    let listing = |api: &Api| api.state().list = Answer::Fault(ApiFault::Hang);
    let backing_off = |api: &Api| api.crash();
    let deleting = |api: &Api| {
        api.state().pods = (0..9).map(|i| stranded(&i.to_string())).collect();
        api.state().delete = Answer::Fault(ApiFault::Hang);
    };
    let cases: [Case; 4] = [
        ("in a watch", watching, Signal::SIGTERM),
        ("in a list without a response", listing, Signal::SIGTERM),
        ("in a back-off", backing_off, Signal::SIGINT),
        ("in a deletion", deleting, Signal::SIGTERM),
    ];
    for (name, prepare, signal) in cases {
        let api = Api::start();
        prepare(&api);
        let mut controller = Controller::start(&api);
        until(name, || match name {
            "in a watch" => !api.watches().is_empty(),
            "in a back-off" => controller.log().contains("retrying in"),
            "in a deletion" => !api.deleted().is_empty(),
            _ => api.lists() > 0,
        });
        let (status, took) = controller.end(signal);
        assert!(status.success(), "{name}: {status}");
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    }
}

#[test]
fn errors_name_invalid_and_missing_settings() {
    let node = "--node-name=a";
    let pod = "--controller-pod-name=b";
    for (arguments, code, message) in [
        (&[pod][..], 2, "--node-name"),
        (&[node], 2, "--controller-pod-name"),
        (&[node, pod, "--log-level=loud"], 2, "\"loud\" is not a log level"),
        (&[node, pod, "--log-format=xml"], 2, "\"xml\" is not a log format"),
        (&[node, pod, "--admin-addr=x"], 2, "--admin-addr"),
        (&[node, pod, "--mode=kill"], 2, "invalid value 'kill' for '--mode <MODE>'"),
        (&[node, pod, "--rate=0"], 2, "--rate"),
        (&[node, pod], 1, "KUBERNETES_SERVICE_HOST"),
        (&[node, pod, "--kubeconfig=/x", "--admin-addr=192.0.2.1:1"], 1, "cannot listen on"),
    ] {
        let output = Command::new(BINARY).env_clear().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}

#[test]
fn stranded_pods_are_deleted_even_if_stdout_and_stderr_are_not_writable() {
    for output in [full_device(), closed(), full_pipe()] {
        let api = Api::start();
        api.state().pods = vec![stranded("web")];
        let mut command = output.as_stderr_of(BINARY);
        command.stdout(output.stdio());
        let mut controller = Controller::start_silent(&api, command);
        controller.until_metric_is("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web")], "{}", output.name);
        let (status, _) = controller.end(Signal::SIGTERM);
        assert!(status.success(), "{}: {status}", output.name);
    }
}

const PROBLEM: &str = "etc/cni/net.d was removed or renamed on the node";

#[test]
fn live_fails_after_the_net_dir_is_recreated_until_the_container_restarts() {
    in_mount_namespace(|| {
        let remove: fn(&Path) = |dir| fs::remove_dir_all(dir).unwrap();
        let rename: fn(&Path) = |dir| fs::rename(dir, dir.with_extension("old")).unwrap();
        for make_stale in [remove, rename] {
            let (api, root) = (Api::start(), TempDir::new().unwrap());
            let on_node = root.path().join("node");
            let prefix = root.path().join("host");
            let mounted = prefix.join("etc/cni/net.d");
            fs::create_dir(&on_node).unwrap();
            fs::create_dir_all(&mounted).unwrap();
            bind(&on_node, &mounted);
            let start =
                || Controller::with(&api, &[&format!("--mount-prefix={}", prefix.display())]);
            let controller = start();
            assert_eq!(controller.get("/live").1, "alive\n");

            make_stale(&on_node);
            fs::create_dir(&on_node).unwrap();
            let (status, why) = controller.get("/live");
            assert_eq!(status, 500);
            assert!(why.contains(PROBLEM) && why.contains("delete this pod"), "{why}");
            controller.until_logged(PROBLEM);

            // The kubelet restarts the container.
            drop(controller);
            umount2(&mounted, MntFlags::MNT_DETACH).unwrap();
            bind(&on_node, &mounted);
            assert_eq!(start().get("/live").1, "alive\n");
            umount2(&mounted, MntFlags::MNT_DETACH).unwrap();
        }
    });
}
