//! The paths around the proxy that `linkerd cni bypass` and the agent's metric report. Connections get out on
//! each of those that rules cause, and on no other.

use linkerd2_cni::config::Config;
use linkerd2_cni::config::bypass::Bypass;
use linkerd2_cni::pod::Decision;
use serde_json::{Value, json};
use testkit::node_copy::FakeCluster;

use super::namespaces::{NEIGHBOUR, POD};
use super::{Scene, api_of, listen};

/// User of the container `app`.
const APP: u32 = 1000;
const EVERYTHING: [&str; 6] = ["out", "out 9001", "out IPv6", "in", "in 8081", "in IPv6"];
const OUTBOUND: [&str; 3] = ["out", "out 9001", "out IPv6"];

/// A meshed pod, its namespace and the plugin entry.
#[derive(Clone)]
struct Pod {
    annotations: Value,
    of_namespace: Value,
    spec: Value,
    entry: Value,
    ips: &'static [&'static str],
}

impl Pod {
    /// A pod without a path around the proxy: both families are redirected, and the app has no capability.
    fn closed() -> Pod {
        let app = json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"]}});
        let containers = json!([
            {"name": "app", "securityContext": app},
            {"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}},
        ]);
        Pod {
            annotations: json!({}),
            of_namespace: json!({}),
            spec: json!({"containers": containers}),
            entry: json!({"ipv6": true}),
            ips: &POD,
        }
    }

    fn annotated(key: &str, value: &str) -> Pod {
        Pod { annotations: json!({format!("config.linkerd.io/{key}"): value}), ..Pod::closed() }
    }

    fn in_namespace(key: &str, value: &str) -> Pod {
        let Pod { annotations, .. } = Pod::annotated(key, value);
        Pod { of_namespace: annotations, ..Pod::closed() }
    }

    fn with_entry(key: &str, value: Value) -> Pod {
        let mut pod = Pod::closed();
        pod.entry[key] = value;
        pod
    }

    fn with_app(context: Value) -> Pod {
        let mut pod = Pod::closed();
        pod.spec["containers"][0]["securityContext"] = context;
        pod
    }

    /// Starts the pod, unless the runtime would not call the plugin for it.
    fn start(&self) -> Scene {
        let metadata = json!({"annotations": self.annotations});
        let scene = Scene::of(api_of(metadata, &self.spec, &self.of_namespace));
        listen(&scene);
        scene.serve_in_pod("app", 8081);
        scene.serve_in_neighbour("server", 9001);
        if self.spec["hostNetwork"] != true {
            let entry = self.entry.as_object().unwrap().iter();
            let add = scene.in_mode("native", "ADD");
            let add = entry.fold(add, |add, (key, value)| add.linkerd(key, value.clone()));
            add.run().succeeded();
        }
        scene
    }

    /// Returns the report, one text for each path.
    fn report(&self) -> Vec<String> {
        let mut entry = testkit::cni::upstream_entry();
        entry["linkerd"].as_object_mut().unwrap().extend(self.entry.as_object().unwrap().clone());
        let config = Config::read(&serde_json::from_value(entry).unwrap()).unwrap();
        let object = json!({
            "metadata": {"name": "web", "namespace": "ns", "annotations": self.annotations},
            "spec": self.spec,
            "status": {"podIPs": self.ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>()},
        });
        let annotations = serde_json::from_value(self.of_namespace.clone()).unwrap();
        let mut namespace = FakeCluster { annotations, ..FakeCluster::default() };
        let pod = serde_json::from_value(object).unwrap();
        match config.bypasses_of(pod, &mut namespace).unwrap() {
            Decision::Redirect(found) => found.into_iter().map(text).collect(),
            skipped @ Decision::Skip(_) => panic!("{skipped:?}"),
        }
    }
}

fn text(Bypass { reason, detail, cause }: Bypass) -> String {
    let cause = cause.map(|(kind, key)| format!(", {kind} {key}"));
    format!("{}: {detail}{}", reason.label(), cause.unwrap_or_default())
}

/// Opens each connection of [`EVERYTHING`], outbound ones as this user. Returns those that do not reach the
/// proxy, but their destination.
fn bypassing(scene: &Scene, uid: u32) -> Vec<&'static str> {
    let out = |to: &str, port| (scene.outbound(uid, to, port), ["outbound", "server"]);
    let inbound = |to: &str, port| (scene.inbound(to, port), ["inbound", "app"]);
    let got = [
        out(NEIGHBOUR[0], 9000),
        out(NEIGHBOUR[0], 9001),
        out(NEIGHBOUR[1], 9000),
        inbound(POD[0], 8080),
        inbound(POD[0], 8081),
        inbound(POD[1], 8080),
    ];
    let direct = got.into_iter().zip(EVERYTHING).filter(|((got, [proxy, direct]), name)| {
        assert!(got == proxy || got == direct, "{name}: {got}");
        got == direct
    });
    direct.map(|(_, name)| name).collect()
}

#[test]
fn each_reported_list_and_setting_lets_exactly_its_connections_bypass_the_proxy() {
    let mut host_network = Pod::closed();
    host_network.spec["hostNetwork"] = json!(true);
    let mut ipv4_proxy = Pod::with_entry("ipv6", json!("auto"));
    ipv4_proxy.spec["containers"][1]["env"] =
        json!([{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"}]);
    let with_entry = Pod::with_entry;
    for (pod, report, wanted) in [
        (Pod::closed(), "", &[][..]),
        (Pod::annotated("skip-inbound-ports", "4191"), "", &[]),
        (
            Pod::annotated("skip-inbound-ports", "8081,4190-4191"),
            "skip-inbound-ports: 8081, pod config.linkerd.io/skip-inbound-ports",
            &["in 8081"],
        ),
        (
            with_entry("inbound-ports-to-ignore", json!(["4191", "8081"])),
            "skip-inbound-ports: 8081, value ignoreInboundPorts",
            &["in 8081"],
        ),
        (
            Pod::in_namespace("skip-outbound-ports", "9001-9009"),
            "skip-outbound-ports: 9001-9009, namespace config.linkerd.io/skip-outbound-ports",
            &["out 9001"],
        ),
        (
            with_entry("outbound-ports-to-ignore", json!(["9001"])),
            "skip-outbound-ports: 9001, value ignoreOutboundPorts",
            &["out 9001"],
        ),
        (
            Pod::annotated("skip-subnets", "10.99.0.0/24"),
            "skip-inbound-subnets: 10.99.0.0/24, pod config.linkerd.io/skip-subnets",
            &["in", "in 8081"],
        ),
        (
            with_entry("inbound-subnets-to-ignore", json!(["fd99::/64"])),
            "skip-inbound-subnets: fd99::/64, value skipInboundSubnets",
            &["in IPv6"],
        ),
        (
            Pod::in_namespace("skip-outbound-subnets", "10.99.0.2/32"),
            "skip-outbound-subnets: 10.99.0.2/32, namespace config.linkerd.io/skip-outbound-subnets",
            &["out", "out 9001"],
        ),
        (
            with_entry("ports-to-redirect", json!([8080])),
            "ports-to-redirect: 8080, value portsToRedirect",
            &["in 8081"],
        ),
        (with_entry("ipv6", json!(false)), "ipv6: , value disableIPv6", &["out IPv6", "in IPv6"]),
        (ipv4_proxy, "ipv6: the proxy listens on IPv4 only", &["out IPv6", "in IPv6"]),
        (
            with_entry("exclude-namespaces", json!(["ns"])),
            "not-redirected: skipped: excluded namespace, value excludeNamespaces",
            &EVERYTHING,
        ),
        (with_entry("simulate", json!(true)), "not-redirected: simulate is true", &EVERYTHING),
        (host_network, "host-network: ", &EVERYTHING),
    ] {
        assert_eq!(pod.report().join("; "), report);
        assert_eq!(bypassing(&pod.start(), APP), wanted, "{report}");
    }
}

#[test]
fn containers_with_the_proxys_user_bypass_it_and_are_reported() {
    let context = |uid: u32| json!({"runAsUser": uid, "capabilities": {"drop": ["ALL"]}});
    let pod = Pod::with_app(context(2102));
    assert_eq!(pod.report(), ["proxy-user: app"]);
    assert_eq!(bypassing(&pod.start(), 2102), OUTBOUND);

    let mut pod = Pod::closed();
    pod.spec["initContainers"] = json!([
        {"name": "linkerd-network-validator", "securityContext": context(2102)},
        {"name": "migrate", "securityContext": context(2102)},
        {"name": "other", "securityContext": context(APP)},
    ]);
    assert_eq!(pod.report(), ["init-proxy-user: migrate"]);
    let scene = pod.start();
    assert_eq!(bypassing(&scene, 2102), OUTBOUND);
    assert_eq!(bypassing(&scene, APP), [""; 0]);

    let mut pod = Pod::closed();
    pod.spec["ephemeralContainers"] =
        json!([{"name": "debugger", "securityContext": context(2102)}]);
    assert_eq!(pod.report(), ["proxy-user: debugger"]);
}

/// Capabilities with which a container can change the rules, send packets past them or become the proxy.
#[test]
fn a_container_with_a_capability_to_bypass_the_proxy_is_reported() {
    let without = |more: Value| {
        let mut context = json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"]}});
        context["capabilities"]["add"] = more;
        context
    };
    let root = &["root-container: app"][..];
    for (context, wanted) in [
        (without(json!(["NET_ADMIN"])), &["net-admin: app"][..]),
        (without(json!(["CAP_net_admin"])), &["net-admin: app"]),
        (without(json!(["NET_RAW"])), &["net-raw: app"]),
        (json!({"runAsUser": APP, "privileged": true}), &["net-admin: app", "net-raw: app"]),
        (json!({}), root),
        (json!({"runAsUser": 0}), root),
        (json!({"runAsNonRoot": true}), &[]),
        (json!({"capabilities": {"drop": ["ALL"]}}), &[]),
        (json!({"capabilities": {"drop": ["all"], "add": ["SETUID"]}}), root),
        (json!({"capabilities": {"drop": ["SETUID"]}}), root),
        (json!({"capabilities": {"drop": ["SETUID", "NET_RAW"]}}), &[]),
    ] {
        assert_eq!(Pod::with_app(context.clone()).report(), wanted, "{context}");
    }
    let mut sandboxed = Pod::closed();
    sandboxed.spec["runtimeClassName"] = json!("gvisor");
    assert_eq!(sandboxed.report(), ["sandbox: gvisor"]);
}

#[test]
fn a_second_network_is_redirected_too_and_is_no_path_of_its_own() {
    let status =
        json!([{"name": "default", "ips": ["10.99.0.1"]}, {"name": "a/b", "ips": ["fd98::1"]}]);
    for (ipv6, report) in [(true, &[][..]), (false, &["ipv6: , value disableIPv6"])] {
        let mut pod = Pod { ips: &POD[..1], ..Pod::with_entry("ipv6", json!(ipv6)) };
        assert_eq!(pod.report(), [""; 0]);
        pod.annotations = json!({"k8s.v1.cni.cncf.io/network-status": status.to_string()});
        assert_eq!(pod.report(), report);
        let scene = pod.start();
        scene.add_network();
        for (own, other, is_redirected) in
            [("10.98.0.1", "10.98.0.2", true), ("fd98::1", "fd98::2", ipv6)]
        {
            let wanted = if is_redirected { ["outbound", "inbound"] } else { ["server", "app"] };
            assert_eq!([scene.outbound(APP, other, 9000), scene.inbound(own, 8080)], wanted);
        }
    }
}
