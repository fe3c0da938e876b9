//! Long lists of skipped ports and subnets: one rule each, and where TCP connections then go.

use serde_json::json;

use super::api::Api;
use super::namespaces::{NEIGHBOUR, Namespaces, POD};
use super::{Call, Scene, api_of, listen, meshed_spec};

/// An API server with a meshed pod that has this annotation.
fn api(annotation: &str, value: &str) -> Api {
    let annotations = json!({format!("config.linkerd.io/{annotation}"): value});
    api_of(json!({"annotations": annotations}), &meshed_spec(), &json!({}))
}

fn call(command: &str, scene: &Scene) -> Call {
    scene.in_mode("native", command).linkerd("ipv6", true).set("log_level", "warn")
}

/// Every second port, in an annotation of 190 kB.
fn every_second_port() -> String {
    (1..=u16::MAX).step_by(2).map(|port| port.to_string()).collect::<Vec<_>>().join(",")
}

/// Number of rules in a chain of the plugin's table.
fn rules(namespaces: &Namespaces, family: &str, chain: &str) -> usize {
    let chain = namespaces.run("nft", &["list", "chain", family, "linkerd-cni", chain]);
    chain.lines().filter(|line| line.contains(" comment ")).count()
}

#[test]
fn a_port_list_of_190_kb_is_one_native_rule_and_check_reads_its_ports() {
    let value = every_second_port();
    for (annotation, chain, others) in [
        ("skip-inbound-ports", "PROXY_INIT_REDIRECT", 1),
        ("skip-outbound-ports", "PROXY_INIT_OUTPUT", 3),
    ] {
        let scene = Scene::of(api(annotation, &value));
        listen(&scene);
        scene.serve_in_pod("app", 8081);
        scene.serve_in_neighbour("server", 9001);
        call("ADD", &scene).run().succeeded();
        for family in ["ip", "ip6"] {
            assert_eq!(rules(&scene, family, chain), others + 1, "{annotation}, {family}");
        }
        let is_inbound = annotation == "skip-inbound-ports";
        for (address, neighbour) in POD.into_iter().zip(NEIGHBOUR) {
            for (port, is_skipped) in [(8080, false), (8081, is_inbound)] {
                let got = scene.connect_from_neighbour(address, port);
                assert!(got.starts_with(if is_skipped { "app" } else { "inbound" }), "{got}");
            }
            for (port, is_skipped) in [(9000, false), (9001, !is_inbound)] {
                let got = scene.connect_from_pod(0, neighbour, port);
                assert!(got.starts_with(if is_skipped { "server" } else { "outbound" }), "{got}");
            }
        }
        call("CHECK", &scene).run().succeeded();
        call("ADD", &scene).run().succeeded();
        assert_eq!(rules(&scene, "ip", chain), others + 1, "{annotation}, second ADD");
    }
}

#[test]
fn separate_subnets_skip_one_direction_each_from_pod_namespace_or_plugin_entry() {
    let own = "10.99.0.0/24,fd99::/64";
    let annotation = |key: &str| json!({format!("config.linkerd.io/{key}"): own});
    for key in ["skip-subnets", "skip-inbound-subnets", "skip-outbound-subnets"] {
        let entry_key = match key {
            "skip-subnets" => "subnets-to-ignore",
            "skip-inbound-subnets" => "inbound-subnets-to-ignore",
            _ => "outbound-subnets-to-ignore",
        };
        for (mode, of_pod, of_namespace, of_entry) in [
            ("native", annotation(key), json!({}), json!(["192.0.2.0/24"])),
            ("nft", annotation(key), json!({}), json!([])),
            ("legacy", json!({}), annotation(key), json!(["192.0.2.0/24"])),
            ("plain", json!({}), json!({}), json!(["10.99.0.0/24", "fd99::/64"])),
            ("native", json!({}), json!({}), json!(["10.99.0.2/32", "fd99::2/128", "::/128"])),
        ] {
            let metadata = json!({"annotations": of_pod});
            let scene = Scene::of(api_of(metadata, &meshed_spec(), &of_namespace));
            listen(&scene);
            let call = |command| {
                let call = scene.in_mode(mode, command).linkerd("ipv6", true);
                call.linkerd(entry_key, of_entry.clone())
            };
            call("ADD").run().succeeded();
            let [inbound, outbound] = match key {
                "skip-outbound-subnets" => ["inbound", "server"],
                _ => ["app", "outbound"],
            };
            for (pod, neighbour) in POD.into_iter().zip(NEIGHBOUR) {
                let got = scene.connect_from_neighbour(pod, 8080);
                assert!(got.starts_with(inbound), "{key}, {mode}: {got}");
                let got = scene.connect_from_pod(0, neighbour, 9000);
                assert!(got.starts_with(outbound), "{key}, {mode}: {got}");
            }
            call("CHECK").run().succeeded();
            // The pod keeps the rules that it started with.
            call("CHECK").linkerd(entry_key, ["198.51.100.0/24"]).run().succeeded();
        }
    }
}

#[test]
fn skipped_subnets_are_one_native_rule_for_each_family() {
    let others =
        || (0..8000).map(|number| format!("172.{}.{}.1/32", 16 + number / 250, number % 250));
    for (subnets, listener) in [
        (["10.99.0.0/28", "10.99.0.2/32", "fd00::/16", "fd99::/64", "fd99::/64"], "app"),
        (["10.99.0.0/31", "10.99.0.3/32", "fd00::/16", "fd99::1/128", "fd99::3/128"], "inbound"),
        (["0.0.0.0/1", "128.0.0.0/1", "10.99.0.0/28", "::/1", "8000::/1"], "app"),
    ] {
        let value: Vec<String> = subnets.map(str::to_owned).into_iter().chain(others()).collect();
        let scene = Scene::of(api("skip-subnets", &value.join(",")));
        listen(&scene);
        call("ADD", &scene).run().succeeded();
        for (family, address) in ["ip", "ip6"].into_iter().zip(POD) {
            // The ports, the subnets, and the redirect.
            assert_eq!(rules(&scene, family, "PROXY_INIT_REDIRECT"), 3, "{family}");
            let got = scene.connect_from_neighbour(address, 8080);
            assert!(got.starts_with(listener), "{family}: {got}");
        }
        call("CHECK", &scene).run().succeeded();
    }
}
