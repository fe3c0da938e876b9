//! The API server rejects, denies, does not answer, or answers with something else.

use rcgen::{CertificateParams, date_time_ymd};
use serde_json::json;

use super::fault::{Fault, meshed_pod};
use crate::api::Api;
use crate::server::Identity;

#[test]
fn the_token_is_rejected() {
    let mut fault = Fault::new("token-rejected");
    let mut state = fault.scene.api.state();
    state.tokens.retain(|token| token == "token-1");
    // Otherwise the agent replaces the token at once.
    state.grant = 500;
    drop(state);
    let outcome = fault.add().run();
    fault.pod_fails(&outcome);
    fault.pod_event("LinkerdCNIFailed");
    fault.ready("could not be renewed");
    fault.check();
}

#[test]
fn the_plugins_account_may_not_read_pods() {
    let fault = Fault::new("request-denied");
    let message = "pods \"web\" is forbidden: User \
                   \"system:serviceaccount:linkerd-cni:linkerd-cni-plugin\" cannot get resource \"pods\" \
                   in API group \"\" in the namespace \"ns\"";
    let status =
        json!({"kind": "Status", "metadata": {}, "reason": "Forbidden", "message": message});
    fault.answer_pod(403, &status);
    let outcome = fault.add().run();
    fault.check_failure(&outcome);
}

#[test]
fn the_certificate_is_of_another_ca() {
    let mut fault = Fault::new("wrong-ca");
    let other = Api::start();
    let kubeconfig = fault.plugin_uses(other.address, None);
    let outcome = fault.add().set("kubernetes", json!({"kubeconfig": kubeconfig})).run();
    fault.check_failure(&outcome);
}

#[test]
fn the_clock_is_after_the_certificates_end() {
    let mut fault = Fault::new("certificate-expired");
    let mut params = CertificateParams::new(["127.0.0.1".into()]).unwrap();
    params.not_after = date_time_ymd(2001, 1, 1);
    let other = Api::start();
    let identity = Identity::new(&params);
    let kubeconfig = fault.plugin_uses(other.address, Some(&identity.ca));
    other.present(identity);
    let outcome = fault.add().set("kubernetes", json!({"kubeconfig": kubeconfig})).run();
    fault.check_failure(&outcome);
}

#[test]
fn the_api_server_is_down() {
    let mut fault = Fault::new("api-server-unreachable");
    fault.scene.api.state().down = true;
    // Nothing listens on port 1.
    let kubeconfig = fault.plugin_uses("127.0.0.1:1".parse().unwrap(), None);
    let outcome = fault.add().set("kubernetes", json!({"kubeconfig": kubeconfig})).run();
    fault.pod_fails(&outcome);
    fault.check();
}

#[test]
fn the_api_server_does_not_respond() {
    let mut fault = Fault::new("api-server-timeout");
    fault.scene.api.state().silent = true;
    let outcome = fault.add().run();
    fault.pod_fails(&outcome);
    fault.check();
}

#[test]
fn the_api_server_is_overloaded() {
    let fault = Fault::new("api-server-error");
    let message = "etcdserver: request timed out";
    fault.answer_pod(500, &json!({"kind": "Status", "metadata": {}, "message": message}));
    let outcome = fault.add().run();
    fault.check_failure(&outcome);
}

#[test]
fn another_program_answers_for_the_api_server() {
    let fault = Fault::new("unexpected-response");
    fault.answer_pod(200, &json!("<html>Sign in</html>"));
    let outcome = fault.add().run();
    fault.check_failure(&outcome);
}

#[test]
fn the_api_server_does_not_know_the_pod() {
    let mut fault = Fault::new("pod-not-found");
    let message = "pods \"web\" not found";
    let status =
        json!({"kind": "Status", "metadata": {}, "reason": "NotFound", "message": message});
    fault.answer_pod(404, &status);
    let outcome = fault.add().run();
    fault.pod_fails(&outcome);
    fault.check();
}

#[test]
fn another_pod_has_the_name() {
    let mut fault = Fault::new("pod-replaced");
    let mut pod = meshed_pod();
    pod["metadata"]["uid"] = json!("c0ffee00-0000-4000-8000-000000000002");
    fault.answer_pod(200, &pod);
    let outcome = fault.add().run();
    fault.pod_fails(&outcome);
    fault.check();
}

#[test]
fn a_marked_pod_starts_without_the_api_server() {
    let mut fault = Fault::new("started-without-api-server");
    // Nothing listens on port 1.
    let kubeconfig = fault.plugin_uses("127.0.0.1:1".parse().unwrap(), None);
    let marked = json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    });
    let add = fault.add().set("kubernetes", json!({"kubeconfig": kubeconfig}));
    add.annotated(marked).run().succeeded();
    fault.pod_event("LinkerdCNIDegraded");
    fault.log_line("annotations and plugin entry alone were used");
    fault.metrics("linkerd_cni_plugin_degraded_total{");
    fault.check();
}

#[test]
fn the_agent_gets_no_token() {
    let mut fault = Fault::new("no-token");
    fault.scene.api.state().grant = 503;
    fault.start_again_without_kubeconfig();
    // The first request may not have ended when the agent first says that it waits.
    fault.ready("HTTP 503");
    fault.log_line("HTTP 503");
    fault.check();
}

#[test]
fn the_kubeconfig_is_missing() {
    let fault = Fault::new("kubeconfig-missing");
    fault.scene.pause_between_passes();
    std::fs::remove_file(fault.scene.node.net("kubeconfig.json")).unwrap();
    let outcome = fault.add().run();
    fault.scene.agent.signal(nix::sys::signal::Signal::SIGCONT);
    fault.check_failure(&outcome);
}

#[test]
fn the_runtime_passes_no_annotations() {
    let mut fault = Fault::new("runtime-without-annotations");
    let mut pod = meshed_pod();
    pod["spec"]["containers"] = json!([{"name": "app"}]);
    fault.answer_pod(200, &pod);
    fault.call("ADD").run().succeeded();
    fault.log_line("skipped: ");
    fault.check();
}
