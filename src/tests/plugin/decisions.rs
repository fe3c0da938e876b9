//! Which pods are skipped, which cause API requests, and which settings apply to a meshed pod.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::api::TOKEN;
use super::namespaces::{NEIGHBOUR, Namespaces};
use super::{POD_PATH, Scene, UID, UNMESHED, listen, record_socket};

#[test]
fn pods_without_an_annotation_of_a_proxy_are_skipped_without_a_request() {
    let scene = Scene::meshed();
    let marked = json!({"linkerd.io/proxy-version": "edge-26.8.3"});
    let cases = [
        ("without annotations", scene.add().annotated(json!({})), 0),
        ("disabled", scene.add().annotated(json!({"linkerd.io/inject": "disabled"})), 0),
        (
            "excluded",
            scene.add().annotated(marked.clone()).linkerd("exclude-namespaces", ["ns"]),
            0,
        ),
        (
            "agent pod",
            scene
                .add()
                .annotated(marked.clone())
                .linkerd("agent-namespace", "cni")
                .env("CNI_ARGS", "K8S_POD_NAMESPACE=cni;K8S_POD_NAME=linkerd-cni-abcde"),
            0,
        ),
        ("with an annotation of a proxy", scene.add().annotated(marked), 2),
        ("not passed by the runtime", scene.add(), 2),
    ];
    for (name, call, requests) in cases {
        let before = scene.api.requests().len();
        call.run().succeeded();
        assert_eq!(scene.api.requests().len() - before, requests, "{name}");
    }
}

#[test]
fn the_agents_pod_in_any_namespace_starts_without_a_request_while_the_token_is_rejected() {
    let scene = Scene::meshed();
    scene.api.accept("another token");
    let add = |namespace: &str| {
        let pod = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=linkerd-cni-x7x4z");
        scene.add().env("CNI_ARGS", &pod)
    };
    let of_a_chart = json!({
        "linkerd.io/created-by": "linkerd/helm v1.7.0-alpha.1",
        "linkerd.io/inject": "disabled",
    });
    for skipped in [
        // By the values of this project's chart, on a runtime that passes no annotations.
        add("mesh").linkerd("agent-namespace", "mesh"),
        add("ops")
            .linkerd("agent-namespace", "ops")
            .linkerd("agent-daemonset", "mesh-cni")
            .env("CNI_ARGS", "K8S_POD_NAMESPACE=ops;K8S_POD_NAME=mesh-cni-x7x4z"),
        // Recognized by its annotations alone.
        add("mesh").annotated(of_a_chart),
    ] {
        skipped.run().succeeded();
    }
    assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());

    // Recognized by the namespace of the token: upstream's manifests do not set `agent-namespace`.
    let claims = json!({"sub": "system:serviceaccount:mesh:linkerd-cni"}).to_string();
    let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
    let by_token = |namespace| {
        let call = add(namespace);
        fs::write(call.kubeconfig(), scene.api.kubeconfig().replace(TOKEN, &token)).unwrap();
        call.run()
    };
    by_token("mesh").succeeded();
    assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());
    by_token("ns").failed(102, "");

    for failing in
        [add("mesh"), add("mesh").annotated(json!({"linkerd.io/proxy-version": "edge-26.8.3"}))]
    {
        let (code, msg) = failing.run().error();
        assert_eq!(code, 102, "{msg}");
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn an_invalid_plugin_entry_fails_meshed_pods_only() {
    let configurations = [
        (
            json!({"proxy-uid": "2102"}),
            "\"linkerd\": \"proxy-uid\": \"2102\" is not a whole number",
        ),
        (
            json!({"iptables-mode": "bogus"}),
            "\"bogus\" is not one of auto, native, nft, legacy and plain",
        ),
        (json!([]), "\"linkerd\": [] is not an object"),
    ];
    for (linkerd, problem) in configurations {
        let scene = Scene::meshed();
        let add = || scene.add().set("linkerd", linkerd.clone());
        add().annotated(json!({})).run().succeeded();
        let (code, msg) = add().run().error();
        assert_eq!(code, 7, "{msg}");
        assert!(msg.ends_with(problem), "{msg}");
        assert_eq!(scene.rules(), "");
        scene.api.answer(POD_PATH, 200, UNMESHED);
        add().run().succeeded();
    }
}

#[test]
fn user_and_ports_of_the_proxy_container_win_over_the_plugin_entry() {
    let scene = Scene::meshed();
    let metadata = json!({"name": "web", "namespace": "ns", "uid": UID});
    let pod = json!({"metadata": metadata, "spec": {"containers": [{
        "name": "linkerd-proxy",
        "securityContext": {"runAsUser": 3000},
        "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:5143"},
            {"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:5140,[::1]:5140"},
            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:5191"},
        ],
    }]}});
    scene.api.answer(POD_PATH, 200, &pod.to_string());
    scene.add().run().succeeded();
    listen(&scene);
    scene.serve_in_pod("other inbound", 5143);
    scene.serve_in_pod("other outbound", 5140);
    scene.serve_in_pod("other admin", 5191);
    let neighbour = NEIGHBOUR[0];
    let pod = super::POD[0];
    let cases = [
        (scene.connect_from_neighbour(pod, 8080), "other inbound 10.99.0.1:8080"),
        (scene.connect_from_neighbour(pod, 5191), "other admin 10.99.0.1:5191"),
        (scene.connect_from_pod(0, neighbour, 9000), "other outbound 10.99.0.2:9000"),
        (scene.connect_from_pod(2102, neighbour, 9000), "other outbound 10.99.0.2:9000"),
        (scene.connect_from_pod(3000, neighbour, 9000), "server 10.99.0.2:9000"),
    ];
    for (got, wanted) in cases {
        assert_eq!(got, wanted);
    }
}

/// Adds the pod's IPv6 address, as a router advertisement or Multus does after ADD.
fn add_ipv6_address(namespaces: &Namespaces) {
    let address = format!("{}/64", super::POD[1]);
    namespaces.run("ip", &["addr", "add", &address, "dev", "eth0", "nodad"]);
}

#[test]
fn ipv6_auto_redirects_ipv6_of_a_pod_that_gets_its_address_after_add() {
    for sysctl in ["0", "1"] {
        let scene = Scene::meshed();
        listen(&scene);
        scene.run("ip", &["-6", "addr", "flush", "dev", "eth0"]);
        let sysctl = format!("net.ipv6.conf.all.disable_ipv6={sysctl}");
        scene.run("sysctl", &["-q", "-w", &sysctl]);
        for mode in ["auto", "nft"] {
            let call = |command| scene.in_mode(mode, command).linkerd("ipv6", "auto");
            call("ADD").run().succeeded();
            call("CHECK").run().succeeded();
        }
        for interface in ["lo", "eth0"] {
            let enable = format!("net.ipv6.conf.{interface}.disable_ipv6=0");
            scene.run("sysctl", &["-q", "-w", &enable]);
        }
        add_ipv6_address(&scene);
        let got = scene.connect_from_pod(3000, NEIGHBOUR[1], 9000);
        assert_eq!(got, format!("outbound [{}]:9000", NEIGHBOUR[1]), "{sysctl}");
    }
}

#[test]
fn a_pod_that_started_with_ipv4_rules_only_stays_complete_whatever_ipv6_is_set_to() {
    let scene = Scene::meshed();
    scene.run("ip", &["-6", "addr", "flush", "dev", "eth0"]);
    let call =
        |command, mode: &str, ipv6: Value| scene.in_mode(mode, command).linkerd("ipv6", ipv6);
    for mode in ["native", "nft"] {
        call("ADD", mode, json!(false)).run().succeeded();
        call("CHECK", mode, json!("auto")).run().succeeded();
        call("CHECK", mode, json!(true)).run().succeeded();
        let previous = json!({"cniVersion": "1.0.0", "ips": [{"address": "fd99::1/64"}]});
        call("CHECK", mode, json!("auto")).set("prevResult", previous).run().succeeded();
    }
    add_ipv6_address(&scene);
    for mode in ["native", "nft"] {
        call("CHECK", mode, json!("auto")).run().succeeded();
    }
}

#[test]
fn with_ipv6_auto_a_part_of_the_ipv6_rules_is_incomplete_without_an_ipv6_address() {
    let scene = Scene::meshed();
    scene.run("ip", &["-6", "addr", "flush", "dev", "eth0"]);
    let call = |command| scene.in_mode("nft", command).linkerd("ipv6", "auto");
    call("ADD").run().succeeded();
    scene.run("ip6tables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    let (code, msg) = call("CHECK").run().error();
    assert_eq!(code, 122, "{msg}");
}

#[test]
fn the_agent_gets_one_record_per_pod_and_the_plugin_never_waits_for_it() {
    let scene = Scene::meshed();
    let call = scene.add();
    let socket = record_socket::listen(&call);
    let receive = || record_socket::record(&socket);
    call.run().succeeded();
    let record = receive();
    for (key, wanted) in [
        ("command", json!("ADD")),
        ("namespace", json!("ns")),
        ("pod", json!("web")),
        ("container_id", json!("abc")),
        ("decision", json!("redirected")),
        ("backend", json!("nft")),
        ("requests", json!(2)),
    ] {
        assert_eq!(record[key], wanted, "{key}: {record}");
    }
    scene.api.answer(POD_PATH, 403, "{}");
    call.run().error();
    let record = receive();
    assert_eq!(record["decision"], "failed");
    assert_eq!(record["error"]["code"], 102);
    assert!(!record.to_string().contains(super::api::TOKEN));

    // The agent no longer reads, so the socket's queue gets full.
    scene.api.answer(POD_PATH, 200, super::UNMESHED);
    let queue = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    for _ in 0..queue.trim().parse::<u32>().unwrap() + 5 {
        call.run().succeeded();
    }
}
