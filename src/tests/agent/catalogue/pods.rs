//! A pod's annotations, containers, or network namespace are wrong.

use serde_json::json;

use super::fault::{Fault, meshed_pod};

#[test]
fn an_annotation_is_invalid() {
    let fault = Fault::new("annotation-invalid");
    let mut pod = meshed_pod();
    pod["metadata"]["annotations"] = json!({"config.linkerd.io/skip-outbound-ports": "mysql"});
    fault.answer_pod(200, &pod);
    let outcome = fault.add().run();
    fault.check_failure(&outcome);
}

#[test]
fn an_invalid_element_of_a_port_list_is_ignored() {
    let mut fault = Fault::new("port-ignored");
    let mut pod = meshed_pod();
    pod["metadata"]["annotations"] = json!({"config.linkerd.io/skip-outbound-ports": "mysql,5432"});
    fault.answer_pod(200, &pod);
    fault.add().run().succeeded();
    fault.pod_event("LinkerdCNIPortsIgnored");
    fault.log_line("mysql");
    fault.metrics("linkerd_cni_plugin_ignored_ports_total{");
    fault.check();
}

#[test]
fn an_init_container_starts_before_the_proxy() {
    let mut fault = Fault::new("init-container-without-network");
    let mut pod = meshed_pod();
    pod["spec"]["initContainers"] =
        json!([{"name": "linkerd-network-validator"}, {"name": "migrate"}]);
    fault.answer_pod(200, &pod);
    fault.add().run().succeeded();
    fault.pod_event("LinkerdCNIInitWithoutNetwork");
    fault.log_line("init containers without network");
    fault.metrics("linkerd_cni_plugin_pods_with_blocked_init_containers_total");
    fault.check();
}

#[test]
fn a_container_runs_as_the_proxys_user() {
    let mut fault = Fault::new("proxy-user-shared");
    let mut pod = meshed_pod();
    pod["spec"]["securityContext"] = json!({"runAsUser": 2102});
    fault.answer_pod(200, &pod);
    fault.add().run().succeeded();
    fault.pod_event("LinkerdCNIProxyUserShared");
    fault.log_line("run as the proxy's user");
    let outcome = fault.add().linkerd("strict-proxy-user", json!(true)).run();
    fault.pod_fails(&outcome);
    fault.check();
}

#[test]
fn the_pods_sandbox_ignores_redirect_rules() {
    let fault = Fault::new("sandboxed-pod");
    let mut pod = meshed_pod();
    pod["spec"]["runtimeClassName"] = json!("gvisor");
    fault.answer_pod(200, &pod);
    let outcome = fault.add().run();
    fault.check_failure(&outcome);
}

#[test]
fn the_network_namespace_is_gone() {
    let fault = Fault::new("network-namespace-missing");
    let outcome = fault.add().env("CNI_NETNS", "/var/run/netns/cni-1234").run();
    fault.check_failure(&outcome);
}

#[test]
fn a_value_of_the_plugin_entry_is_invalid() {
    let fault = Fault::new("plugin-entry-invalid");
    let outcome = fault.add().linkerd("proxy-uid", json!("2102")).run();
    fault.check_failure(&outcome);
}
