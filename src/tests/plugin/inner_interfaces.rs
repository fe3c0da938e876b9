//! Tests connections from networks inside a pod. The pod's netns has a bridge with a guest behind
//! it, and a proxy that listens on the same addresses as Linkerd's.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use linkerd2_cni::firewall::{self, RulesState};
use linkerd2_cni::netns;
use serde_json::json;
use testkit::inner_network::{BRIDGE, GUEST, Guest, forward, serve_at};

use super::namespaces::{NEIGHBOUR, POD};
use super::record_socket::run_and_record;
use super::{Scene, iptables_program, listener_name, meshed_spec};

const ANNOTATION: &str = "config.linkerd.io/inner-interfaces";
const MODES: [&str; 5] = ["auto", "native", "nft", "legacy", "plain"];
const SECOND: Duration = Duration::from_secs(1);

fn socket_address(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// Returns the program with which Docker in the pod writes its rules. Besides rules of
/// iptables-legacy, it has to be iptables-legacy too: the kernel would evaluate rules of
/// iptables-nft first.
fn iptables_in_pod(mode: &str) -> String {
    match mode {
        "legacy" | "plain" => iptables_program(mode, false),
        _ => iptables_program("nft", false),
    }
}

/// Creates a scene whose pod has the annotation with this value.
fn annotated_scene(value: &str) -> Scene {
    Scene::with_pod(json!({ ANNOTATION: value }), &meshed_spec(), &json!({}))
}

/// Starts listeners in the pod, for the proxy and the app. Starts servers in the neighbour's netns.
fn start_listeners(scene: &Scene) {
    serve_at(scene, "outbound", socket_address("127.0.0.1:4140"));
    serve_at(scene, "outbound", socket_address("[::1]:4140"));
    scene.serve_in_pod("inbound", 4143);
    scene.serve_in_pod("app", 8080);
    for port in [25, 53, 4191, 9000] {
        scene.serve_in_neighbour("server", port);
    }
}

#[test]
fn ipv4_connections_from_inside_reach_the_outbound_port_and_keep_their_destination() {
    for mode in MODES {
        let scene = annotated_scene("docker0,k6t-eth0");
        start_listeners(&scene);
        let call = |command| {
            let call = scene.in_mode(mode, command).linkerd("ipv6", true);
            let call = call.linkerd("outbound-ports-to-ignore", ["25"]);
            call.linkerd("outbound-subnets-to-ignore", ["10.99.0.9/32"])
        };
        call("ADD").run().succeeded();
        // Docker and KubeVirt create their bridges after ADD.
        let guest = Guest::behind_bridge(&scene, "docker0");
        guest.serve("guest", 80);
        scene.sh(&format!(
            "{0} -t nat -A PREROUTING -i eth0 -p tcp --dport 8081 -j DNAT --to-destination {1}:80",
            iptables_in_pod(mode),
            GUEST[0]
        ));
        let pod = POD[0];
        let neighbour = NEIGHBOUR[0];
        for (name, got, wanted) in [
            ("a service", guest.connect(neighbour, 9000), "outbound 10.99.0.2:9000"),
            ("without a listener", guest.connect(neighbour, 7777), "outbound 10.99.0.2:7777"),
            ("DNS over TCP", guest.connect(neighbour, 53), "outbound 10.99.0.2:53"),
            // Lists of skipped inbound ports do not apply.
            ("an admin port", guest.connect(neighbour, 4191), "outbound 10.99.0.2:4191"),
            ("a skipped port", guest.connect(neighbour, 25), "server 10.99.0.2:25"),
            ("the pod", guest.connect(pod, 8080), "outbound 10.99.0.1:8080"),
            ("the bridge", guest.connect(BRIDGE[0], 8080), "outbound 172.17.0.1:8080"),
            ("a published port", guest.connect(pod, 8081), "outbound 10.99.0.1:8081"),
            // The annotation does not affect connections from outside.
            ("inbound", scene.connect_from_neighbour(pod, 8080), "inbound 10.99.0.1:8080"),
            ("published", scene.connect_from_neighbour(pod, 8081), "inbound 10.99.0.1:8081"),
            ("outbound", scene.connect_from_pod(0, neighbour, 9000), "outbound 10.99.0.2:9000"),
            ("the proxy", scene.connect_from_pod(2102, neighbour, 9000), "server 10.99.0.2:9000"),
            ("to the guest", scene.connect_from_pod(2102, GUEST[0], 80), "guest 172.17.0.2:80"),
            ("loopback", scene.connect_from_pod(0, pod, 8080), "app 10.99.0.1:8080"),
            ("localhost", scene.connect_from_pod(0, "127.0.0.1", 8080), "app 127.0.0.1:8080"),
        ] {
            assert_eq!(got, wanted, "{mode}: {name}");
        }
        call("CHECK").run().succeeded();
        call("ADD").run().succeeded();
        assert_eq!(guest.connect(neighbour, 9000), "outbound 10.99.0.2:9000", "{mode}, again");
    }
}

/// The kernel does not route packets from a bridge to `::1`.
#[test]
fn ipv6_connections_from_inside_reach_only_a_proxy_that_listens_on_all_addresses() {
    for mode in MODES {
        let scene = annotated_scene("docker0");
        scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        let guest = Guest::behind_bridge(&scene, "docker0");
        scene.serve_in_neighbour("server", 9000);
        serve_at(&scene, "outbound", socket_address("[::1]:4140"));
        assert_eq!(guest.connect(NEIGHBOUR[1], 9000), "refused", "{mode}");

        let scene = annotated_scene("docker0");
        let skipped = scene.in_mode(mode, "ADD").linkerd("outbound-ports-to-ignore", ["25"]);
        skipped.linkerd("ipv6", true).run().succeeded();
        let guest = Guest::behind_bridge(&scene, "docker0");
        scene.serve_in_neighbour("server", 25);
        scene.serve_in_pod("outbound", 4140);
        scene.serve_in_pod("inbound", 4143);
        for (name, got, wanted) in [
            ("a service", guest.connect(NEIGHBOUR[1], 9000), "outbound [fd99::2]:9000"),
            ("a skipped port", guest.connect(NEIGHBOUR[1], 25), "server [fd99::2]:25"),
            ("inbound", scene.connect_from_neighbour(POD[1], 8080), "inbound [fd99::1]:8080"),
        ] {
            assert_eq!(got, wanted, "{mode}: {name}");
        }
    }
}

#[test]
fn interfaces_are_read_from_pod_then_namespace_then_plugin_entry() {
    let annotation = |value: &str| json!({ ANNOTATION: value });
    for (pod_annotations, namespace_annotations, entry, wanted) in [
        (json!({}), json!({}), json!([]), "inbound"),
        (json!({}), json!({}), json!(["docker0"]), "outbound"),
        (json!({}), annotation("docker0"), json!([]), "outbound"),
        (json!({}), annotation("other0"), json!(["docker0"]), "inbound"),
        (annotation("docker0"), annotation("other0"), json!(["other0"]), "outbound"),
        (annotation("other0"), annotation("docker0"), json!(["docker0"]), "inbound"),
    ] {
        let case = format!("{pod_annotations} {namespace_annotations} {entry}");
        let scene = Scene::with_pod(pod_annotations, &meshed_spec(), &namespace_annotations);
        start_listeners(&scene);
        scene.in_mode("native", "ADD").linkerd("inner-interfaces", entry).run().succeeded();
        let guest = Guest::behind_bridge(&scene, "docker0");
        assert_eq!(listener_name(guest.connect(NEIGHBOUR[0], 9000)), wanted, "{case}");
    }
}

/// Other tests compare the rules of pods without the annotation with upstream's.
#[test]
fn without_the_annotation_connections_from_inside_are_inbound_and_no_sysctl_changes() {
    let route_localnet = "cat /proc/sys/net/ipv4/conf/*/route_localnet | tr -d '\\n'";
    for mode in MODES {
        let scene = Scene::meshed();
        start_listeners(&scene);
        let before = scene.sh(route_localnet);
        scene.in_mode(mode, "ADD").run().succeeded();
        assert_eq!(scene.sh(route_localnet), before, "{mode}");
        let guest = Guest::behind_bridge(&scene, "docker0");
        assert_eq!(guest.connect(NEIGHBOUR[0], 9000), "inbound 10.99.0.2:9000", "{mode}");
    }
}

#[test]
fn add_sets_route_localnet_only_for_inner_interfaces_and_the_default() {
    for mode in ["native", "nft"] {
        let scene = annotated_scene("docker0,k6t-eth0");
        let guest = Guest::behind_bridge(&scene, "docker0");
        start_listeners(&scene);
        scene.in_mode(mode, "ADD").run().succeeded();
        scene.sh("ip link add later0 type bridge");
        let list = "cd /proc/sys/net/ipv4/conf && grep -l 1 */route_localnet | cut -d/ -f1 | xargs";
        assert_eq!(scene.sh(list), "default docker0 later0\n", "{mode}");
        assert_eq!(guest.connect(NEIGHBOUR[0], 9000), "outbound 10.99.0.2:9000", "{mode}");
    }
}

#[test]
fn add_fails_with_a_remedy_if_sysctls_are_read_only() {
    let scene = annotated_scene("docker0");
    let outcome = scene.in_mode("native", "ADD").run_with_read_only_sysctls();
    let outcome = outcome.failed(121, "cannot set the sysctls net.ipv4.conf.*.route_localnet");
    outcome.advises("delete the pod");
    // A pod without inner interfaces needs no sysctl.
    let scene = Scene::meshed();
    scene.in_mode("native", "ADD").run_with_read_only_sysctls().succeeded();
}

/// Sends a datagram from the netns `sender` to a port of 127.0.0.1 in the pod. Returns true if it
/// arrives.
fn datagram_reaches_loopback(scene: &Scene, sender: &std::path::Path) -> bool {
    // Use a free port: a process that another test has just forked may keep an earlier socket open
    // until it executes its program.
    let receiver = scene.within(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
    let address = receiver.local_addr().unwrap();
    receiver.set_read_timeout(Some(SECOND)).unwrap();
    let send = move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.send_to(b"x", address).unwrap();
    };
    netns::run(sender, 5 * SECOND, send).unwrap();
    match receiver.recv(&mut [0; 8]) {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            false
        }
    }
}

/// Returns commands that route packets for the loopback addresses to the pod.
fn loopback_route_commands(gateway: &str) -> String {
    format!(
        "sysctl -qw net.ipv4.conf.all.route_localnet=1 && ip addr flush dev lo && \
         ip route replace 127.0.0.0/8 via {gateway}"
    )
}

#[test]
fn loopback_addresses_of_the_pod_are_unreachable_from_its_networks() {
    for mode in ["native", "nft", "legacy"] {
        let scene = annotated_scene("docker0");
        scene.in_mode(mode, "ADD").run().succeeded();
        serve_at(&scene, "loopback", socket_address("127.0.0.1:8088"));
        let guest = Guest::behind_bridge(&scene, "docker0");
        guest.sh(&loopback_route_commands(BRIDGE[0]));
        // The pod gets a network later, which the annotation does not name.
        scene.add_network();
        let neighbour = scene.neighbour_path();
        let enter = format!("nsenter --net={}", neighbour.display());
        let route = loopback_route_commands("10.98.0.1");
        testkit::child::must(
            std::process::Command::new("sh").args(["-c", &format!("{enter} sh -c '{route}'")]),
        );
        assert!(!datagram_reaches_loopback(&scene, &guest.path()), "{mode}: from inside");
        assert!(!datagram_reaches_loopback(&scene, &neighbour), "{mode}: from the later network");
        let from_neighbour = scene.connect_from_neighbour("127.0.0.1", 8088);
        assert!(!from_neighbour.contains("loopback"), "{mode}: {from_neighbour}");

        // Without the rules, the packets would arrive.
        match mode {
            "native" => scene.sh("nft flush chain ip linkerd-cni PROXY_INIT_REDIRECT"),
            _ => scene
                .sh(&format!("{} -t nat -F PROXY_INIT_REDIRECT", iptables_program(mode, false))),
        };
        assert!(
            datagram_reaches_loopback(&scene, &guest.path()),
            "{mode}: from inside, without rules"
        );
        assert!(
            datagram_reaches_loopback(&scene, &neighbour),
            "{mode}: later network, without rules"
        );
    }
}

/// Returns the rules of KubeVirt's binding `masquerade` for a virtual machine with the port 80
/// (`setupNATByFamily` in `pkg/network/setup/netpod/masquerade/masquerade.go`). If `for_a_proxy` is
/// set, the machine has the annotation `sidecar.istio.io/inject: "true"`.
fn kubevirt_rules(for_a_proxy: bool) -> String {
    let pod = POD[0];
    let gateway = BRIDGE[0];
    let guest = GUEST[0];
    let (preinbound, to_guest, from_proxy) = if for_a_proxy {
        (String::new(), format!("127.0.0.1, {pod}"), "127.0.0.1, 127.0.0.6")
    } else {
        (format!("tcp dport 80 counter dnat to {guest}"), "127.0.0.1".to_owned(), "127.0.0.1")
    };
    format!(
        "table ip nat {{
            chain KUBEVIRT_PREINBOUND {{ {preinbound}; }}
            chain KUBEVIRT_POSTINBOUND {{
                tcp dport 80 ip saddr {{ {from_proxy} }} counter snat to {gateway};
            }}
            chain prerouting {{ type nat hook prerouting priority -100;
                iifname eth0 counter jump KUBEVIRT_PREINBOUND;
            }}
            chain input {{ type nat hook input priority 100; }}
            chain output {{ type nat hook output priority -100;
                ip daddr {{ {to_guest} }} tcp dport 80 counter dnat to {guest};
            }}
            chain postrouting {{ type nat hook postrouting priority 100;
                ip saddr {guest} counter masquerade;
                oifname k6t-eth0 counter jump KUBEVIRT_POSTINBOUND;
            }}
        }}"
    )
    .replace("{ ; }", "{ }")
}

/// Connects through a proxy that itself connects to the original destination, as the proxy's user.
#[test]
fn virtual_machine_with_kubevirts_masquerade_connects_and_serves_through_the_proxy() {
    for mode in MODES {
        let scene = annotated_scene("k6t-eth0");
        scene.in_mode(mode, "ADD").run().succeeded();
        let machine = Guest::behind_bridge(&scene, "k6t-eth0");
        scene.sh(&format!("nft delete table ip inner && nft '{}'", kubevirt_rules(true)));
        machine.serve("machine", 80);
        scene.serve_in_neighbour("server", 9000);
        forward(&scene, "outbound", socket_address("127.0.0.1:4140"));
        forward(&scene, "inbound", socket_address("0.0.0.0:4143"));
        let got = machine.connect(NEIGHBOUR[0], 9000);
        assert_eq!(got, "outbound 10.99.0.2:9000\nserver 10.99.0.2:9000", "{mode}");
        let got = scene.connect_from_neighbour(POD[0], 80);
        assert_eq!(got, "inbound 10.99.0.1:80\nmachine 172.17.0.2:80", "{mode}");
        // A connection to the pod's own address goes through the proxy back to the machine.
        let got = machine.connect(POD[0], 80);
        assert_eq!(got, "outbound 10.99.0.1:80\nmachine 172.17.0.2:80", "{mode}");
    }
}

/// Without KubeVirt's annotation for proxies, no rule forwards the proxy's connections to the
/// machine.
#[test]
fn inbound_connections_to_a_virtual_machine_need_kubevirts_annotation_for_proxies() {
    let scene = annotated_scene("k6t-eth0");
    scene.in_mode("native", "ADD").run().succeeded();
    let machine = Guest::behind_bridge(&scene, "k6t-eth0");
    scene.sh(&format!("nft delete table ip inner && nft '{}'", kubevirt_rules(false)));
    machine.serve("machine", 80);
    scene.serve_in_neighbour("server", 9000);
    forward(&scene, "outbound", socket_address("127.0.0.1:4140"));
    forward(&scene, "inbound", socket_address("0.0.0.0:4143"));
    let got = machine.connect(NEIGHBOUR[0], 9000);
    assert_eq!(got, "outbound 10.99.0.2:9000\nserver 10.99.0.2:9000");
    let got = scene.connect_from_neighbour(POD[0], 80);
    assert_eq!(got, "inbound 10.99.0.1:80\nConnectionRefused");
}

/// Uses Docker's rules for a published port.
#[test]
fn docker_container_in_the_pod_connects_and_serves_through_the_proxy() {
    for mode in MODES {
        let scene = annotated_scene("docker0");
        scene.in_mode(mode, "ADD").run().succeeded();
        let container = Guest::behind_bridge(&scene, "docker0");
        let program = iptables_in_pod(mode);
        scene.sh(&format!(
            "{program} -t nat -N DOCKER && \
             {program} -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER && \
             {program} -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER && \
             {program} -t nat -A DOCKER ! -i docker0 -p tcp --dport 8081 -j DNAT \
             --to-destination {}:80",
            GUEST[0]
        ));
        container.serve("container", 80);
        scene.serve_in_neighbour("server", 9000);
        forward(&scene, "outbound", socket_address("127.0.0.1:4140"));
        forward(&scene, "inbound", socket_address("0.0.0.0:4143"));
        let got = container.connect(NEIGHBOUR[0], 9000);
        assert_eq!(got, "outbound 10.99.0.2:9000\nserver 10.99.0.2:9000", "{mode}");
        let got = scene.connect_from_neighbour(POD[0], 8081);
        assert_eq!(got, "inbound 10.99.0.1:8081\ncontainer 172.17.0.2:80", "{mode}");
    }
}

/// On Kubernetes nodes, the sysctl `bridge-nf-call-iptables` is 1, so that a bridge passes packets
/// between its own ports to iptables.
#[test]
fn containers_of_one_bridge_reach_each_other_through_the_proxy_unless_their_subnet_is_skipped() {
    for (skipped, wanted) in [
        (json!([]), "outbound 172.17.0.3:80\nother 172.17.0.3:80"),
        (json!(["172.17.0.0/16"]), "other 172.17.0.3:80"),
    ] {
        let scene = annotated_scene("docker0");
        let call = scene.in_mode("native", "ADD");
        call.linkerd("outbound-subnets-to-ignore", skipped).run().succeeded();
        let container = Guest::behind_bridge(&scene, "docker0");
        scene.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        let other = Guest::with_addresses(&scene, "docker0", ["172.17.0.3", "fd17::3"]);
        other.serve("other", 80);
        forward(&scene, "outbound", socket_address("127.0.0.1:4140"));
        assert_eq!(container.connect("172.17.0.3", 80), wanted);
    }
}

#[test]
fn check_and_audit_detect_a_missing_rule_and_a_changed_sysctl() {
    for mode in ["native", "nft", "legacy"] {
        let scene = annotated_scene("docker0,k6t-eth0");
        let call = |command| scene.in_mode(mode, command).linkerd("ipv6", true);
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
        let audit = || scene.within(|| firewall::rules_state(None)).unwrap();
        // The audit cannot read legacy tables, because it does not use the host's programs.
        if mode != "legacy" {
            assert_eq!(audit(), RulesState::Complete, "{mode}");
        }
        scene.sh("sysctl -qw net.ipv4.conf.default.route_localnet=0");
        call("CHECK").run().failed(122, "net.ipv4.conf.default.route_localnet=1");
        if mode != "legacy" {
            assert!(matches!(audit(), RulesState::Missing(..)), "{mode}: {:?}", audit());
        }
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();

        let delete = match mode {
            "native" => "nft -a list table ip linkerd-cni | \
                         sed -n 's/.*all-from-k6t-eth0.*handle //p' | \
                         xargs nft delete rule ip linkerd-cni PROXY_INIT_REDIRECT handle"
                .to_owned(),
            _ => format!("{} -t nat -D PROXY_INIT_REDIRECT 4", iptables_program(mode, false)),
        };
        scene.sh(&delete);
        let outcome = call("CHECK").run();
        let (_, msg) = outcome.failed(122, "-i k6t-eth0 -p tcp").error();
        assert!(!msg.contains("docker0 -p tcp"), "{mode}: {msg}");
        if mode != "legacy" {
            assert!(matches!(audit(), RulesState::Missing(..)), "{mode}: {:?}", audit());
        }
    }
}

#[test]
fn check_fails_if_a_native_rule_for_an_interface_was_changed() {
    let scene = annotated_scene("docker0");
    let call = |command| scene.in_mode("native", command).run();
    for (from, to) in [
        ("iifname \"docker0\"", "iifname \"docker1\""),
        ("dnat to 127.0.0.1:4140", "dnat to 127.0.0.2:4140"),
        ("dnat to 127.0.0.1:4140", "dnat to 127.0.0.1:4141"),
        ("daddr 127.0.0.0/8 drop", "daddr 127.0.0.0/8 accept"),
        ("daddr 127.0.0.0/8 drop", "daddr 127.0.0.0/9 drop"),
    ] {
        call("ADD").succeeded();
        call("CHECK").succeeded();
        super::native::replace_rule_of_family(&scene, "ip", from, to);
        println!("{from}, {to}");
        call("CHECK").failed(122, "");
    }
}

#[test]
fn rules_for_inner_interfaces_are_alike_in_every_mode() {
    let scene = annotated_scene("docker0,k6t-eth0");
    let call = scene.in_mode("native", "ADD").linkerd("ipv6", true);
    call.linkerd("outbound-ports-to-ignore", ["25", "8000-8010"]).run().succeeded();
    insta::assert_snapshot!("native", scene.run("nft", &["list", "ruleset"]));
    for mode in ["nft", "legacy", "plain"] {
        let scene = annotated_scene("docker0,k6t-eth0");
        let call = scene.in_mode(mode, "ADD").linkerd("ipv6", true);
        call.linkerd("outbound-ports-to-ignore", ["25", "8000-8010"]).run().succeeded();
        let rules = [false, true].map(|ipv6| scene.nat(&iptables_program(mode, ipv6)));
        insta::with_settings!({snapshot_suffix => "iptables"}, {
            insta::assert_snapshot!("rules", rules.join("\n\nIPv6\n"));
        });
    }
}

#[test]
fn invalid_interface_name_is_recorded_or_fails_the_pod_if_annotations_are_strict() {
    let scene = annotated_scene("docker0,docker+,eth0");
    let (outcome, record) = run_and_record(&scene.in_mode("native", "ADD"));
    outcome.succeeded().logs(&format!("ignored in {ANNOTATION}: \"docker+\", \"eth0\""));
    let ignored = json!([{"source": ANNOTATION, "elements": ["docker+", "eth0"], "more": 0}]);
    assert_eq!(record["ignored"], ignored);
    assert!(scene.sh("nft list ruleset").contains("iifname \"docker0\""));

    let strict = scene.in_mode("native", "ADD").linkerd("strict-annotations", true);
    let (outcome, record) = run_and_record(&strict);
    outcome.failed(110, &format!("{ANNOTATION}: \"docker0,docker+,eth0\": \"docker+\" is not"));
    assert_eq!((&record["error"]["code"], &record["ignored"]), (&json!(110), &json!([])));

    let scene = annotated_scene("eth0");
    scene.in_mode("native", "ADD").run().failed(110, "no valid element is left");
    assert_eq!(scene.sh("nft list ruleset"), "");
}
