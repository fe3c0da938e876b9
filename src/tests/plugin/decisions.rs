//! Tests which pods are skipped, which pods cause API requests, and which settings apply to a
//! meshed pod.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::chart::yaml;
use testkit::table;

use super::api::TOKEN;
use super::injected::manual_annotations;
use super::namespaces::{NEIGHBOUR, Namespaces, POD};
use super::{
    MESHED, NAMESPACE_PATH, POD_PATH, Scene, UID, UNMESHED, record_socket, start_listeners,
};

/// A row of `requests` in `decisions.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsRow {
    annotations: Option<Value>,
    spec: Value,
    requests: usize,
    is_redirected: bool,
}

#[test]
fn add_sends_only_the_necessary_requests_and_check_sends_none() {
    for (name, row) in table::rows_of::<RequestsRow>(include_str!("decisions.yaml"), "requests") {
        let RequestsRow { annotations, spec, requests, is_redirected } = row;
        let scene = Scene::with_pod(json!(annotations), &spec, &json!({}));
        let outcome = scene.add().annotated(annotations.clone()).run().succeeded();
        assert_eq!(outcome.json()["ips"][0]["address"], "10.99.0.1/24", "{name}");
        let both = [format!("GET {POD_PATH}"), format!("GET {NAMESPACE_PATH}")];
        assert_eq!(scene.api.requests(), both[..requests], "{name}");
        assert_eq!(scene.has_rules(), is_redirected, "{name}");
        if is_redirected && annotations.is_some() {
            scene.call("CHECK").annotated(annotations).run().succeeded();
            assert_eq!(scene.api.requests().len(), requests, "{name}");
        }
    }
}

#[test]
fn pods_in_excluded_namespaces_and_non_pods_are_skipped_without_a_request() {
    let scene = Scene::meshed();
    for call in [
        scene.add().annotated(manual_annotations()).linkerd("exclude-namespaces", ["ns"]),
        scene.add().env("CNI_ARGS", ""),
        scene.add().env("CNI_ARGS", "IgnoreUnknown=1"),
        scene.add().env("CNI_ARGS", "K8S_POD_NAME=web"),
        // podman can run on a node too. It generates the container's name, or its user sets it.
        scene.add().env("CNI_ARGS", "K8S_POD_NAMESPACE=nifty_pasteur;K8S_POD_NAME=nifty_pasteur"),
        scene.add().env("CNI_ARGS", "K8S_POD_NAMESPACE=Web;K8S_POD_NAME=Web"),
        scene.call("CHECK").env("CNI_ARGS", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=nifty_pasteur"),
    ] {
        call.run().succeeded();
    }
    assert!(scene.api.requests().is_empty());
    assert_eq!(scene.rules(), "");
}

#[test]
fn agent_pod_starts_without_a_request_while_the_token_is_rejected() {
    let scene = Scene::meshed();
    scene.api.accept("another token");
    let add = |namespace: &str| {
        let pod = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=linkerd-cni-x7x4z");
        scene.add().env("CNI_ARGS", &pod)
    };
    let chart_annotations = json!({
        "linkerd.io/created-by": "linkerd/helm v1.7.0-alpha.1",
        "linkerd.io/inject": "disabled",
    });
    for skipped in [
        // The plugin entry of this project's chart names the agent's namespace. The runtime passes
        // no annotations.
        add("mesh").linkerd("agent-namespace", "mesh"),
        add("ops")
            .linkerd("agent-namespace", "ops")
            .linkerd("agent-daemonset", "mesh-cni")
            .env("CNI_ARGS", "K8S_POD_NAMESPACE=ops;K8S_POD_NAME=mesh-cni-x7x4z"),
        // The pod is recognized by its annotations alone.
        add("mesh").annotated(chart_annotations),
    ] {
        skipped.run().succeeded();
    }
    assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());

    // The pod is recognized by the namespace in the token: upstream's manifests do not set
    // `agent-namespace`.
    let claims = json!({"sub": "system:serviceaccount:mesh:linkerd-cni"}).to_string();
    let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
    let add_with_token_of_account = |namespace| {
        let call = add(namespace);
        fs::write(call.kubeconfig(), scene.api.kubeconfig().replace(TOKEN, &token)).unwrap();
        call.run()
    };
    add_with_token_of_account("mesh").succeeded();
    assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());
    add_with_token_of_account("ns").failed(102, "");

    add("mesh").run().failed(102, "");
    add("mesh").annotated(manual_annotations()).run().failed(102, "");
    assert_eq!(scene.rules(), "");
}

#[test]
fn invalid_plugin_entry_fails_only_meshed_pods() {
    for (name, (linkerd, problem)) in table::named([
        (
            "a UID that is a text",
            (
                json!({"proxy-uid": "2102"}),
                "\"linkerd\": \"proxy-uid\": \"2102\" is not a whole number",
            ),
        ),
        (
            "a member that is not supported",
            (json!({"simulate": true}), "\"linkerd\": \"simulate\": true is not supported"),
        ),
        ("a list", (json!([]), "\"linkerd\": [] is not an object")),
    ]) {
        let scene = Scene::meshed();
        let add = || scene.add().set("linkerd", linkerd.clone());
        add().annotated(json!({})).run().succeeded();
        add().run().failed(7, problem);
        assert_eq!(scene.rules(), "", "{name}");
        scene.api.answer(POD_PATH, 200, UNMESHED);
        add().run().succeeded();
    }
}

/// The plugin entry names no valid kubeconfig, so the record is sent to the socket in the run dir.
#[test]
fn invalid_kubeconfig_setting_fails_with_the_same_code_whichever_source_decides() {
    let invalid = json!({"kubeconfig": 5});
    for (name, (kubernetes, is_copied, code)) in table::named([
        ("not set", (json!({}), false, Some(100))),
        ("not set, and not needed", (json!({}), true, None)),
        ("a number", (invalid.clone(), false, Some(7))),
        ("a number, and not needed", (invalid, true, Some(7))),
        ("a list", (json!([]), false, Some(7))),
        ("a list, and not needed", (json!([]), true, Some(7))),
    ]) {
        let scene = Scene::meshed();
        let call = scene.add();
        let run_dir = call.run_dir();
        fs::create_dir(&run_dir).unwrap();
        if is_copied {
            testkit::node_copy::publish(&run_dir, ["ns", "web", UID], MESHED);
        }
        let socket = record_socket::bind_at(&run_dir.join("records.sock"));
        let outcome = call.set("kubernetes", kubernetes).run();
        let record = record_socket::receive_record(&socket);
        match code {
            Some(code) => {
                assert_eq!(outcome.error().0, code, "{name}");
                assert_eq!(record["error"]["code"], code, "{name}: {record}");
            }
            None => assert_eq!(record["decision"], "redirected", "{name}: {record}"),
        }
    }
}

/// Creates a scene with a meshed pod that has no IPv6 address.
pub fn scene_without_ipv6_address() -> Scene {
    let scene = Scene::meshed();
    scene.sh("ip -6 address flush dev eth0");
    scene
}

/// Adds an IPv6 address to the pod, as a router advertisement or Multus may do after ADD.
fn add_ipv6_address(namespaces: &Namespaces) {
    namespaces.sh(&format!("ip addr add {}/64 dev eth0 nodad", POD[1]));
}

#[test]
fn ipv6_auto_redirects_an_address_that_the_pod_gets_after_add() {
    for sysctl in ["0", "1"] {
        let scene = scene_without_ipv6_address();
        start_listeners(&scene);
        scene.sh(&format!("sysctl -q -w net.ipv6.conf.all.disable_ipv6={sysctl}"));
        for mode in ["auto", "nft"] {
            let call = |command| scene.in_mode(mode, command).linkerd("ipv6", "auto");
            call("ADD").run().succeeded();
            call("CHECK").run().succeeded();
        }
        scene.sh("sysctl -q -w net.ipv6.conf.lo.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0");
        add_ipv6_address(&scene);
        assert_eq!(scene.outbound(3000, NEIGHBOUR[1], 9000), "outbound", "{sysctl}");
    }
}

#[test]
fn check_accepts_ipv4_rules_whatever_the_ipv6_setting_is() {
    let scene = scene_without_ipv6_address();
    let call =
        |command, mode: &str, ipv6: Value| scene.in_mode(mode, command).linkerd("ipv6", ipv6);
    for mode in ["native", "nft"] {
        call("ADD", mode, json!(false)).run().succeeded();
        call("CHECK", mode, json!("auto")).run().succeeded();
        call("CHECK", mode, json!(true)).run().succeeded();
    }
    add_ipv6_address(&scene);
    for mode in ["native", "nft"] {
        call("CHECK", mode, json!("auto")).run().succeeded();
    }
}

#[test]
fn check_fails_on_partial_ipv6_rules_even_without_an_ipv6_address() {
    let scene = scene_without_ipv6_address();
    let call = |command| scene.in_mode("nft", command).linkerd("ipv6", "auto");
    call("ADD").run().succeeded();
    scene.run("ip6tables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    call("CHECK").run().failed(122, "");
}

#[test]
fn plugin_sends_one_record_per_call_and_never_waits_for_the_agent() {
    let spec = &yaml(include_str!("decisions.yaml"))["recorded"];
    let scene = Scene::with_pod(json!({}), spec, &json!({}));
    let call = scene.add();
    let socket = record_socket::bind(&call);
    let receive = || record_socket::receive_record(&socket);
    call.run().succeeded();
    let record = receive();
    for (key, wanted) in yaml(include_str!("decisions.yaml"))["record"].as_object().unwrap() {
        assert_eq!(record[key], *wanted, "{key}: {record}");
    }
    scene.api.refuse(POD_PATH, 403);
    call.run().error();
    let record = receive();
    assert_eq!(record["decision"], "failed");
    assert_eq!(record["error"]["code"], 102);
    assert!(!record.to_string().contains(TOKEN));

    // Nothing reads the records any more, so the socket's queue fills up.
    scene.api.answer(POD_PATH, 200, UNMESHED);
    let queue = fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    for _ in 0..queue.trim().parse::<u32>().unwrap() + 5 {
        call.run().succeeded();
    }
}
