//! Tests the redirect rules that ADD installs, and where they send TCP connections.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use linkerd2_cni::netns;
use linkerd2_cni::redirect::Family;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use serde_json::json;
use testkit::properties::difference::difference;
use testkit::properties::evaluator::Rules;

use super::namespaces::{NEIGHBOUR, POD, original_destination};
use super::{
    SERVICE_PATH, Scene, iptables_program, meshed_spec, start_api_with_pod, start_listeners,
    write_program,
};

#[test]
fn tcp_goes_through_the_proxy_in_every_mode_and_family() {
    for mode in ["auto", "native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        start_listeners(&scene);
        scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        for family in [0, 1] {
            let pod = POD[family];
            let neighbour = NEIGHBOUR[family];
            let to_pod = in_brackets(pod);
            let to_neighbour = in_brackets(neighbour);
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

/// Puts an IPv6 address in brackets.
fn in_brackets(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

#[test]
fn iptables_rules_are_the_same_as_upstreams_in_every_mode() {
    for mode in ["nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        let ipv4 = scene.nat(&iptables_program(mode, false));
        insta::with_settings!({snapshot_suffix => "default"}, {
            insta::assert_snapshot!("rules", ipv4);
        });
        assert_eq!(scene.nat(&iptables_program(mode, true)), ipv4, "{mode}");
    }
}

/// Arguments with which upstream's plugin calls iptables for a pod with a proxy GID and with
/// skipped ports and subnets.
const UPSTREAM_COMMANDS: &str = include_str!("upstream_commands.txt");

#[test]
fn each_iptables_mode_redirects_packets_as_upstreams_commands_do() {
    for mode in ["nft", "legacy", "plain"] {
        let upstream = Scene::meshed();
        for command in UPSTREAM_COMMANDS.lines() {
            upstream.sh(&format!("{} -w -t nat {command}", iptables_program(mode, false)));
        }
        let scene = Scene::meshed();
        let call = scene.in_mode(mode, "ADD").linkerd("proxy-gid", 5678);
        let call = call.linkerd("subnets-to-ignore", ["10.0.0.0/8"]);
        call.linkerd("outbound-ports-to-ignore", ["443", "1000-2000"]).run().succeeded();
        let upstream_rules = read_rules(&upstream, mode);
        let installed_rules = read_rules(&scene, mode);
        assert_eq!(difference(&upstream_rules, &installed_rules, Family::Ipv4), None, "{mode}");

        // The comparison detects a missing rule.
        scene.sh(&format!("{} -w -t nat -D PROXY_INIT_REDIRECT 1", iptables_program(mode, false)));
        let found = difference(&upstream_rules, &read_rules(&scene, mode), Family::Ipv4).unwrap();
        assert_eq!(found.ports, [None, Some(4143)], "{mode}: {found:?}");
    }
}

/// Reads the IPv4 rules that iptables lists in the pod's netns.
fn read_rules(scene: &Scene, mode: &str) -> Rules {
    let list = scene.run(&iptables_program(mode, false), &["-w", "-t", "nat", "-S"]);
    let lines: Vec<String> = list.lines().map(str::to_owned).collect();
    Rules::read(&lines).unwrap()
}

#[test]
fn annotations_of_pod_and_namespace_reach_the_rules() {
    let pod_annotations = json!({
        "config.linkerd.io/skip-outbound-ports": "25,9000",
        "config.linkerd.io/skip-inbound-ports": "8080",
        "config.linkerd.io/proxy-uid": "",
        "config.linkerd.io/proxy-gid": "5678",
    });
    let spec =
        json!({"containers": [{"name": "app"}], "initContainers": [{"name": "linkerd-proxy"}]});
    let namespace_annotations = json!({
        "config.linkerd.io/skip-outbound-ports": "1",
        "config.linkerd.io/proxy-uid": "1234",
        "config.linkerd.io/skip-subnets": "10.0.0.0/8,192.168.1.7/24,fd00::/8,::/0",
    });
    let scene = Scene::with_pod(pod_annotations, &spec, &namespace_annotations);
    scene.add().linkerd("ipv6", true).run().succeeded();
    let both = format!("{}\n\nIPv6\n{}", scene.rules(), scene.nat("ip6tables-nft"));
    insta::assert_snapshot!("rules@annotations", both);
}

#[test]
fn control_plane_pod_reaches_the_api_server_without_the_proxy() {
    let service = r#"{"metadata":{},"spec":{"ports":[{"port":443,"targetPort":6443}]}}"#;
    let labels = json!({"linkerd.io/control-plane-component": "identity"});
    for (code, body) in [(200, service), (500, "broken")] {
        let api = start_api_with_pod(json!({"labels": labels}), &meshed_spec(), &json!({}));
        api.answer(SERVICE_PATH, code, body);
        let scene = Scene::with_api(api);
        scene.add().linkerd("api-retry-seconds", 2).run().succeeded();
        let rules = scene.rules();
        assert!(rules.contains("--dports 443,6443"), "{code}: {rules}");
    }
}

#[test]
fn second_add_does_not_duplicate_rules_and_keeps_foreign_rules() {
    for mode in ["native", "nft", "legacy"] {
        let scene = Scene::meshed();
        let foreign = "PREROUTING -p tcp -m tcp --dport 1 -j REDIRECT --to-ports 2";
        let program = iptables_program(if mode == "native" { "nft" } else { mode }, false);
        scene.sh(&format!("{program} -t nat -A {foreign}"));
        let rules = || match mode {
            "native" => scene.sh("nft list ruleset"),
            _ => scene.nat(&program),
        };
        let call = scene.in_mode(mode, "ADD").linkerd("ipv6", true);
        call.run().succeeded();
        let once = rules();
        call.run().succeeded();
        assert_eq!(rules(), once, "{mode}");
        assert!(scene.nat(&program).starts_with(&format!("-A {foreign}")), "{once}");

        call.linkerd("incoming-proxy-port", 5143).run().succeeded();
        assert_eq!(rules(), once.replace("4143", "5143"), "{mode}");
    }
}

#[test]
fn add_leaves_no_rules_if_one_family_fails() {
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
    assert!(scene.has_rules());
}

const SECOND: Duration = Duration::from_secs(1);
/// Source port of all connections of the client.
const SOURCE_PORT: u16 = 40_000;

/// Connects from the neighbour and [`SOURCE_PORT`] to `port` of the pod.
fn connect_from_one_port(scene: &Scene, port: u16) -> TcpStream {
    let connect = move || {
        let flag = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flag, None).unwrap();
        // SO_REUSEPORT lets several sockets use the same source port.
        setsockopt(&fd, sockopt::ReusePort, &true).unwrap();
        let source = SocketAddrV4::new(NEIGHBOUR[0].parse().unwrap(), SOURCE_PORT);
        let pod = SocketAddrV4::new(POD[0].parse().unwrap(), port);
        bind(fd.as_raw_fd(), &SockaddrIn::from(source)).unwrap();
        connect(fd.as_raw_fd(), &SockaddrIn::from(pod)).unwrap();
        TcpStream::from(fd)
    };
    netns::run(&scene.neighbour_path(), 20 * SECOND, connect).unwrap()
}

/// A client connects from one address and port to many ports of the pod. After the redirect all
/// connections have the same destination, so their replies would collide (linkerd2#15505). The
/// kernel therefore changes the source port of all but the first. The client does not notice.
#[test]
fn each_mode_redirects_connections_that_share_a_source_port() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        scene.in_mode(mode, "ADD").run().succeeded();
        let listen = || TcpListener::bind("[::]:4143").unwrap();
        let listener = netns::run(&scene.path(), 5 * SECOND, listen).unwrap();
        let mut open = Vec::new();
        // Port 4143, the last one, is the proxy's own.
        for port in (8000..8100).chain([4143]) {
            let client = connect_from_one_port(&scene, port);
            let (proxy, _) = listener.accept().unwrap();
            assert_eq!(original_destination(&proxy).port(), port, "{mode}");
            open.push((client, proxy));
        }
        let source_ports: BTreeSet<u16> =
            open.iter().map(|(_, proxy)| proxy.peer_addr().unwrap().port()).collect();
        assert_eq!(source_ports.len(), open.len(), "{mode}");
        assert_eq!(open[0].1.peer_addr().unwrap().port(), SOURCE_PORT, "{mode}");
        for (client, proxy) in &mut open {
            let mut received = [0; 4];
            proxy.write_all(b"pong").unwrap();
            client.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"pong", "{mode}");
        }
    }
}
