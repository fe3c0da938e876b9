//! Tests long lists of skipped ports and subnets: each needs only one native rule, and TCP
//! connections go where the list says.

use serde_json::{Map, json};
use testkit::table;

use super::namespaces::{NEIGHBOUR, Namespaces, POD};
use super::{Call, Scene, meshed_spec, start_listeners};

/// Creates a meshed pod with listeners and with these annotations. Their keys lack the prefix
/// `config.linkerd.io/`.
fn annotated_scene(annotations: &[(&str, &str)]) -> Scene {
    let with_prefix =
        |(key, value): &(&str, &str)| (format!("config.linkerd.io/{key}"), json!(value));
    let annotations = annotations.iter().map(with_prefix).collect::<Map<_, _>>();
    let scene = Scene::with_pod(annotations.into(), &meshed_spec(), &json!({}));
    start_listeners(&scene);
    scene
}

fn call(command: &str, scene: &Scene) -> Call {
    scene.in_mode("native", command).linkerd("ipv6", true).set("log_level", "warn")
}

/// Lists every second port, in 190 kB.
fn every_second_port() -> String {
    (1..=u16::MAX).step_by(2).map(|port| port.to_string()).collect::<Vec<_>>().join(",")
}

/// Counts the rules in a chain of the plugin's table.
fn count_rules(namespaces: &Namespaces, family: &str, chain: &str) -> usize {
    let chain = namespaces.run("nft", &["list", "chain", family, "linkerd-cni", chain]);
    chain.lines().filter(|line| line.contains(" comment ")).count()
}

#[test]
fn port_list_of_190_kb_is_one_rule_that_check_can_read() {
    let value = every_second_port();
    for (annotation, chain, other_rules, wanted) in [
        ("skip-inbound-ports", "PROXY_INIT_REDIRECT", 1, ["app", "outbound"]),
        ("skip-outbound-ports", "PROXY_INIT_OUTPUT", 3, ["inbound", "server"]),
    ] {
        let scene = annotated_scene(&[(annotation, &value)]);
        scene.serve_in_pod("app", 8081);
        scene.serve_in_neighbour("server", 9001);
        call("ADD", &scene).run().succeeded();
        for family in ["ip", "ip6"] {
            let rules = count_rules(&scene, family, chain);
            assert_eq!(rules, other_rules + 1, "{annotation}, {family}");
        }
        for (pod, neighbour) in POD.into_iter().zip(NEIGHBOUR) {
            let got = [scene.inbound(pod, 8080), scene.outbound(0, neighbour, 9000)];
            assert_eq!(got, ["inbound", "outbound"], "{annotation}");
            let got = [scene.inbound(pod, 8081), scene.outbound(0, neighbour, 9001)];
            assert_eq!(got, wanted, "{annotation}");
        }
        call("CHECK", &scene).run().succeeded();
        call("ADD", &scene).run().succeeded();
        let rules = count_rules(&scene, "ip", chain);
        assert_eq!(rules, other_rules + 1, "{annotation}, second ADD");
    }
}

#[test]
fn subnets_of_each_direction_are_skipped_only_in_that_direction() {
    for (mode, key, wanted) in [
        ("native", "inbound-subnets-to-ignore", ["app", "outbound"]),
        ("nft", "inbound-subnets-to-ignore", ["app", "outbound"]),
        ("legacy", "outbound-subnets-to-ignore", ["inbound", "server"]),
        ("plain", "outbound-subnets-to-ignore", ["inbound", "server"]),
        ("native", "outbound-subnets-to-ignore", ["inbound", "server"]),
        ("plain", "subnets-to-ignore", ["app", "outbound"]),
    ] {
        let scene = annotated_scene(&[]);
        let call = |command| {
            let subnets = ["192.0.2.0/24", "10.99.0.2/32", "fd99::2/128", "::/128"];
            scene.in_mode(mode, command).linkerd("ipv6", true).linkerd(key, subnets)
        };
        call("ADD").run().succeeded();
        for (pod, neighbour) in POD.into_iter().zip(NEIGHBOUR) {
            let got = [scene.inbound(pod, 8080), scene.outbound(0, neighbour, 9000)];
            assert_eq!(got, wanted, "{key}, {mode}");
        }
        call("CHECK").run().succeeded();
        // The pod keeps the rules that it started with.
        call("CHECK").linkerd(key, ["198.51.100.0/24"]).run().succeeded();
    }
}

#[test]
fn skipped_subnets_are_one_native_rule_for_each_family() {
    let other_subnets =
        || (0..8000).map(|number| format!("172.{}.{}.1/32", 16 + number / 250, number % 250));
    for (name, (subnets, listener)) in table::named([
        (
            "the neighbour is in several subnets",
            (["10.99.0.0/28", "10.99.0.2/32", "fd00::/16", "fd99::/64", "fd99::/64"], "app"),
        ),
        (
            "the neighbour is in no subnet",
            (
                ["10.99.0.0/31", "10.99.0.3/32", "fd00::/16", "fd99::1/128", "fd99::3/128"],
                "inbound",
            ),
        ),
        (
            "two subnets contain all addresses",
            (["0.0.0.0/1", "128.0.0.0/1", "10.99.0.0/28", "::/1", "8000::/1"], "app"),
        ),
    ]) {
        let subnets = subnets.map(str::to_owned).into_iter().chain(other_subnets());
        let value: Vec<String> = subnets.collect();
        let scene = annotated_scene(&[("skip-subnets", &value.join(","))]);
        call("ADD", &scene).run().succeeded();
        for (family, address) in ["ip", "ip6"].into_iter().zip(POD) {
            // One rule skips the ports, one skips the subnets, and one redirects.
            let rules = count_rules(&scene, family, "PROXY_INIT_REDIRECT");
            assert_eq!(rules, 3, "{name}: {family}");
            assert_eq!(scene.inbound(address, 8080), listener, "{name}: {family}");
        }
        call("CHECK", &scene).run().succeeded();
    }
}
