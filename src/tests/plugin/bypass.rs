//! The paths around the proxy that `linkerd cni bypass` and the agent's metric report: connections get
//! out on each of them, and on no other.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use linkerd2_cni::config::Config;
use linkerd2_cni::config::bypass::Bypass;
use linkerd2_cni::pod::Decision;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use serde_json::{Value, json};
use testkit::lookup::FakeCluster;

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

/// Runs a shell command as root in the pod, with these capabilities only.
fn run_with(scene: &Scene, capabilities: &str, command: &str) -> bool {
    let script = format!(
        "setpriv --inh-caps=-all --bounding-set=-all{capabilities} {command} && echo done || true"
    );
    scene.sh(&script).contains("done")
}

#[test]
fn a_container_with_net_admin_can_remove_the_rules_and_is_reported() {
    for context in [
        json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}),
        json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"], "add": ["CAP_net_admin"]}}),
    ] {
        assert_eq!(Pod::with_app(context).report(), ["net-admin: app"]);
    }
    let privileged = json!({"runAsUser": APP, "privileged": true});
    assert_eq!(Pod::with_app(privileged).report(), ["net-admin: app", "net-raw: app"]);
    let scene = Pod::closed().start();
    assert!(!run_with(&scene, "", "nft flush ruleset"));
    assert_eq!(bypassing(&scene, APP), [""; 0]);
    assert!(run_with(&scene, ",+net_admin", "nft flush ruleset"));
    assert_eq!(bypassing(&scene, APP), EVERYTHING);
}

#[test]
fn a_container_that_may_be_root_with_setuid_can_become_the_proxy_and_is_reported() {
    for (context, is_reported) in [
        (json!({}), true),
        (json!({"runAsUser": 0}), true),
        (json!({"runAsNonRoot": true}), false),
        (json!({"capabilities": {"drop": ["ALL"]}}), false),
        (json!({"capabilities": {"drop": ["all"], "add": ["SETUID"]}}), true),
        (json!({"capabilities": {"drop": ["SETUID"]}}), true),
        (json!({"capabilities": {"drop": ["SETUID", "NET_RAW"]}}), false),
    ] {
        let report = Pod::with_app(context.clone()).report();
        let wanted: &[&str] = if is_reported { &["root-container: app"] } else { &[] };
        assert_eq!(report, wanted, "{context}");
    }
    let scene = Pod::closed().start();
    let connect = format!("bash -c 'exec 3<>/dev/tcp/{}/9000 && grep -q server <&3'", NEIGHBOUR[0]);
    let as_proxy = format!("setpriv --reuid=2102 {connect}");
    assert!(!run_with(&scene, "", &connect), "root itself is redirected");
    assert!(!run_with(&scene, "", &as_proxy));
    assert!(run_with(&scene, ",+setuid", &as_proxy));
}

/// Sends a TCP SYN from the pod to the neighbour, as a frame of eth0. Returns whether a server answers with SYN
/// and ACK.
fn handshake_by_frames(scene: &Scene, port: u16) -> bool {
    // Resolves the neighbour's Ethernet address.
    scene.connect_from_pod(2102, NEIGHBOUR[0], 9000);
    let neighbour = scene.run("ip", &["neigh", "show", NEIGHBOUR[0]]);
    let mac = neighbour.split("lladdr ").nth(1).unwrap().split(' ').next().unwrap();
    let mac: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    scene.in_pod(move || {
        let interfaces = getifaddrs().unwrap().filter(|found| found.interface_name == "eth0");
        let link =
            interfaces.filter_map(|found| found.address?.as_link_addr().copied()).next().unwrap();
        let frames = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        );
        let frames = frames.unwrap();
        bind(frames.as_raw_fd(), &link).unwrap();
        let frame = syn(&mac, &link.addr().unwrap(), port);
        send(frames.as_raw_fd(), &frame, MsgFlags::empty()).unwrap();
        let end = Instant::now() + Duration::from_secs(2);
        let mut found = [0; 2048];
        while Instant::now() < end {
            match recv(frames.as_raw_fd(), &mut found, MsgFlags::empty()) {
                // Ports and flags of a TCP header after an IPv4 header without options.
                Ok(54..) if found[34..36] == port.to_be_bytes() && found[47] == 0x12 => {
                    return true;
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        false
    })
}

/// Returns the Ethernet frame of a SYN (RFC 9293, section 3.1) from 10.99.0.1 to 10.99.0.2.
fn syn(to: &[u8], from: &[u8], port: u16) -> Vec<u8> {
    let (source, destination) = ([10, 99, 0, 1], [10, 99, 0, 2]);
    let mut ip = vec![0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0];
    ip.extend([source, destination].concat());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let mut tcp = 45_000u16.to_be_bytes().to_vec();
    tcp.extend(port.to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [&source[..], &destination, &[0, 6, 0, 20], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo));
    [to, from, &[8, 0], &ip, &tcp].concat()
}

/// The checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// gVisor and Kata exchange frames with the pod's interface in the same way.
#[test]
fn frames_of_a_container_with_net_raw_and_of_a_sandbox_bypass_the_proxy_and_are_reported() {
    let context = json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}});
    assert_eq!(Pod::with_app(context).report(), ["net-raw: app"]);
    let mut sandboxed = Pod::closed();
    sandboxed.spec["runtimeClassName"] = json!("gvisor");
    assert_eq!(sandboxed.report(), ["sandbox: gvisor"]);

    let scene = Pod::closed().start();
    assert_eq!(bypassing(&scene, APP), [""; 0]);
    assert!(handshake_by_frames(&scene, 9000));
    assert!(!handshake_by_frames(&scene, 9999), "nobody listens there");
}

#[test]
fn udp_of_every_pod_bypasses_the_proxy() {
    let scene = Pod::closed().start();
    let server = scene.in_neighbour(|| UdpSocket::bind((NEIGHBOUR[0], 9000)).unwrap());
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let client = scene.in_pod(|| UdpSocket::bind((POD[0], 0)).unwrap());
    client.send_to(b"datagram", (NEIGHBOUR[0], 9000)).unwrap();
    let (length, from) = server.recv_from(&mut [0; 16]).unwrap();
    assert_eq!((length, from), (8, client.local_addr().unwrap()));
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
