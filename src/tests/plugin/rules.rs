//! The redirect rules that ADD installs, and where TCP connections then go.

use serde_json::json;

use super::namespaces::{NEIGHBOUR, POD};
use super::{SERVICE_PATH, Scene, api_of, bracketed, iptables, listen, meshed_spec, write_program};

#[test]
fn tcp_goes_through_the_proxy_in_every_mode_and_family() {
    for mode in ["auto", "native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        listen(&scene);
        scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        for family in [0, 1] {
            let (pod, neighbour) = (POD[family], NEIGHBOUR[family]);
            let to_pod = bracketed(pod);
            let to_neighbour = bracketed(neighbour);
            let from_neighbour = |port| scene.connect_from_neighbour(pod, port);
            let from_pod = |uid, to, port| scene.connect_from_pod(uid, to, port);
            for (name, got, wanted) in [
                ("inbound", from_neighbour(8080), format!("inbound {to_pod}:8080")),
                ("without a listener", from_neighbour(7777), format!("inbound {to_pod}:7777")),
                ("admin", from_neighbour(4191), format!("admin {to_pod}:4191")),
                ("outbound", from_pod(0, neighbour, 9000), format!("outbound {to_neighbour}:9000")),
                ("proxy", from_pod(2102, neighbour, 9000), format!("server {to_neighbour}:9000")),
                ("loopback", from_pod(0, pod, 8080), format!("app {to_pod}:8080")),
            ] {
                assert_eq!(got, wanted, "{mode}, family {family}: {name}");
            }
        }
    }
}

#[test]
fn iptables_rules_equal_upstreams_in_every_mode() {
    for mode in ["nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        let ipv4 = scene.nat(&iptables(mode, false));
        insta::with_settings!({snapshot_suffix => "default"}, {
            insta::assert_snapshot!("rules", ipv4);
        });
        assert_eq!(scene.nat(&iptables(mode, true)), ipv4, "{mode}");
    }
}

#[test]
fn annotations_of_pod_and_namespace_reach_the_rules() {
    let of_pod = json!({
        "config.linkerd.io/skip-outbound-ports": "25,9000",
        "config.linkerd.io/skip-inbound-ports": "8080",
        "config.linkerd.io/proxy-uid": "",
    });
    let spec =
        json!({"containers": [{"name": "app"}], "initContainers": [{"name": "linkerd-proxy"}]});
    let of_namespace = json!({
        "config.linkerd.io/skip-outbound-ports": "1",
        "config.linkerd.io/proxy-uid": "1234",
        "config.linkerd.io/skip-subnets": "10.0.0.0/8,fd00::/8",
    });
    let scene = Scene::of(api_of(json!({"annotations": of_pod}), &spec, &of_namespace));
    scene.add().linkerd("ipv6", true).run().succeeded();
    let both = format!("{}\n\nIPv6\n{}", scene.rules(), scene.nat("ip6tables-nft"));
    insta::assert_snapshot!("rules@annotations", both);
}

#[test]
fn a_control_plane_pod_reaches_the_api_server_without_the_proxy() {
    let service = r#"{"metadata":{},"spec":{"ports":[{"port":443,"targetPort":6443}]}}"#;
    let labels = json!({"linkerd.io/control-plane-component": "identity"});
    for (code, body) in [(200, service), (500, "broken")] {
        let api = api_of(json!({"labels": labels}), &meshed_spec(), &json!({}));
        api.answer(SERVICE_PATH, code, body);
        let scene = Scene::of(api);
        scene.add().run().succeeded();
        let rules = scene.rules();
        assert!(rules.contains("--dports 443,6443"), "{code}: {rules}");
    }
}

#[test]
fn a_second_add_leaves_each_rule_once_and_keeps_foreign_rules() {
    for mode in ["nft", "legacy"] {
        let scene = Scene::meshed();
        let program = iptables(mode, false);
        let foreign = "-t nat -A PREROUTING -p tcp --dport 1 -j REDIRECT --to-ports 2";
        scene.run(&program, &foreign.split(' ').collect::<Vec<_>>());
        let call = scene.in_mode(mode, "ADD");
        call.run().succeeded();
        let once = scene.nat(&program);
        call.run().succeeded();
        assert_eq!(scene.nat(&program), once, "{mode}");
        let foreign = "-A PREROUTING -p tcp -m tcp --dport 1 -j REDIRECT --to-ports 2";
        assert!(once.starts_with(foreign), "{once}");

        let other = call.linkerd("incoming-proxy-port", 5143);
        other.run().succeeded();
        let changed = scene.nat(&program);
        assert_eq!(changed, once.replace("4143", "5143"), "{mode}");
    }
}

#[test]
fn no_rule_is_left_if_the_rules_of_one_family_fail() {
    let scene = Scene::meshed();
    let bin = tempfile::tempdir().unwrap();
    for name in ["ip6tables-nft", "ip6tables-nft-restore"] {
        write_program(&bin.path().join(name), "echo no ip6 here >&2\nexit 3");
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/bin", bin.path().display());
    scene.add().env("PATH", &path).linkerd("ipv6", true).run().failed(121, "no ip6 here");
    assert_eq!(scene.rules(), "");
    assert!(!scene.run("iptables-nft-save", &[]).contains("PROXY_INIT"));
}

#[test]
fn iptables_is_found_without_a_path_variable() {
    let scene = Scene::meshed();
    scene.add().env("PATH", "").run().succeeded();
    assert!(scene.rules().contains("PROXY_INIT_OUTPUT"));
}

#[test]
fn simulate_logs_the_rules_and_installs_none() {
    let scene = Scene::meshed();
    let outcome = scene.add().linkerd("simulate", true).run().succeeded();
    assert!(outcome.stderr.contains("-A PROXY_INIT_OUTPUT"), "{}", outcome.stderr);
    assert_eq!(scene.rules(), "");
}
