//! Tests of the plugin binary: called as by a container runtime, in network namespaces, with a TLS
//! API server and with TCP connections through the rules. Needs root.

#![allow(clippy::expect_used, clippy::unwrap_used)]

#[path = "../support/api.rs"]
mod api;
#[path = "../support/call.rs"]
mod call;
#[path = "../support/child.rs"]
mod child;
#[path = "../support/cni.rs"]
mod cni;
mod decisions;
mod fallback;
mod faults;
mod identity;
mod ignored;
mod injected;
#[path = "../support/namespaces.rs"]
mod namespaces;
mod native;
mod optional_ipv6;
mod record_socket;
mod stderr;
#[allow(dead_code, reason = "the cluster's tests use all of it")]
#[path = "../support/until.rs"]
mod until;
#[path = "../support/unwritable.rs"]
mod unwritable;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use api::Api;
use call::{Call, Outcome, PLUGIN, UID};
use namespaces::{NEIGHBOUR, Namespaces, POD};
use serde_json::{Value, json};

const POD_PATH: &str = "/api/v1/namespaces/ns/pods/web";
const NAMESPACE_PATH: &str = "/api/v1/namespaces/ns";
const SERVICE_PATH: &str = "/api/v1/namespaces/default/services/kubernetes";
const MESHED: &str = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"app"},{"name":"linkerd-proxy"}]}}"#;
const UNMESHED: &str = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"app"}]}}"#;
const NAMESPACE: &str = r#"{"metadata":{"name":"ns"}}"#;

impl Call {
    /// A call with a kubeconfig for `api`.
    fn new(command: &str, netns: &Path, api: &Api) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let mut call = Call::with_kubeconfig(command, netns, &kubeconfig);
        call.dir = Some(dir);
        call
    }
}

/// Writes an executable shell script.
fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn meshed_api() -> Api {
    let api = Api::start();
    api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
    api
}

fn iptables(mode: &str, ipv6: bool) -> String {
    let base = if ipv6 { "ip6tables" } else { "iptables" };
    match mode {
        "plain" => base.to_owned(),
        mode => format!("{base}-{mode}"),
    }
}

/// Starts listeners of proxy, admin port and app in the pod, and a server in the neighbour.
fn listen(namespaces: &Namespaces) {
    namespaces.serve_in_pod("inbound", 4143);
    namespaces.serve_in_pod("outbound", 4140);
    namespaces.serve_in_pod("admin", 4191);
    namespaces.serve_in_pod("app", 8080);
    namespaces.serve_in_neighbour("server", 9000);
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

#[test]
fn tcp_goes_through_the_proxy_in_every_mode_and_family() {
    for mode in ["auto", "native", "nft", "legacy", "plain"] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        listen(&namespaces);
        Call::new("ADD", &namespaces.path(), &api)
            .linkerd("iptables-mode", json!(mode))
            .linkerd("ipv6", json!(true))
            .run()
            .succeeded();
        for family in [0, 1] {
            let (pod, neighbour) = (POD[family], NEIGHBOUR[family]);
            let to_pod = bracketed(pod);
            let to_neighbour = bracketed(neighbour);
            let cases = [
                (
                    "inbound",
                    namespaces.connect_from_neighbour(pod, 8080),
                    format!("inbound {to_pod}:8080"),
                ),
                (
                    "inbound, without a listener",
                    namespaces.connect_from_neighbour(pod, 7777),
                    format!("inbound {to_pod}:7777"),
                ),
                (
                    "admin",
                    namespaces.connect_from_neighbour(pod, 4191),
                    format!("admin {to_pod}:4191"),
                ),
                (
                    "outbound",
                    namespaces.connect_from_pod(0, neighbour, 9000),
                    format!("outbound {to_neighbour}:9000"),
                ),
                (
                    "from the proxy",
                    namespaces.connect_from_pod(2102, neighbour, 9000),
                    format!("server {to_neighbour}:9000"),
                ),
                (
                    "loopback",
                    namespaces.connect_from_pod(0, pod, 8080),
                    format!("app {to_pod}:8080"),
                ),
            ];
            for (name, got, wanted) in cases {
                assert_eq!(got, wanted, "{mode}, family {family}: {name}");
            }
        }
    }
}

#[test]
fn iptables_rules_equal_upstreams_in_every_mode() {
    for mode in ["nft", "legacy", "plain"] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        Call::new("ADD", &namespaces.path(), &api)
            .linkerd("iptables-mode", json!(mode))
            .linkerd("ipv6", json!(true))
            .run()
            .succeeded();
        let ipv4 = namespaces.nat(&iptables(mode, false));
        insta::with_settings!({snapshot_suffix => "default"}, {
            insta::assert_snapshot!("rules", ipv4);
        });
        assert_eq!(namespaces.nat(&iptables(mode, true)), ipv4, "{mode}");
    }
}

#[test]
fn annotations_of_pod_and_namespace_reach_the_rules() {
    let (api, namespaces) = (Api::start(), Namespaces::new());
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID, "annotations": {
            "config.linkerd.io/skip-outbound-ports": "25,9000",
            "config.linkerd.io/skip-inbound-ports": "8080",
            "config.linkerd.io/proxy-uid": "",
        }},
        "spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "linkerd-proxy"}]},
    });
    let namespace = json!({"metadata": {"name": "ns", "annotations": {
        "config.linkerd.io/skip-outbound-ports": "1",
        "config.linkerd.io/proxy-uid": "1234",
        "config.linkerd.io/skip-subnets": "10.0.0.0/8,fd00::/8",
    }}});
    api.answer(POD_PATH, 200, &pod.to_string()).answer(NAMESPACE_PATH, 200, &namespace.to_string());
    Call::new("ADD", &namespaces.path(), &api).linkerd("ipv6", json!(true)).run().succeeded();
    let both =
        format!("{}\n\nIPv6\n{}", namespaces.nat("iptables-nft"), namespaces.nat("ip6tables-nft"));
    insta::assert_snapshot!("rules@annotations", both);
}

#[test]
fn a_control_plane_pod_reaches_the_api_server_without_the_proxy() {
    let service = r#"{"metadata":{},"spec":{"ports":[{"port":443,"targetPort":6443}]}}"#;
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID,
            "labels": {"linkerd.io/control-plane-component": "identity"}},
        "spec": {"containers": [{"name": "linkerd-proxy"}]},
    });
    for (code, body) in [(200, service), (500, "broken")] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        api.answer(POD_PATH, 200, &pod.to_string()).answer(SERVICE_PATH, code, body);
        Call::new("ADD", &namespaces.path(), &api).run().succeeded();
        let rules = namespaces.nat("iptables-nft");
        assert!(rules.contains("--dports 443,6443"), "{code}: {rules}");
    }
}

#[test]
fn a_second_add_leaves_each_rule_once_and_keeps_foreign_rules() {
    for mode in ["nft", "legacy"] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        let program = iptables(mode, false);
        let foreign = "-t nat -A PREROUTING -p tcp --dport 1 -j REDIRECT --to-ports 2";
        namespaces.run(&program, &foreign.split(' ').collect::<Vec<_>>());
        let call = Call::new("ADD", &namespaces.path(), &api).linkerd("iptables-mode", json!(mode));
        call.run().succeeded();
        let once = namespaces.nat(&program);
        call.run().succeeded();
        assert_eq!(namespaces.nat(&program), once, "{mode}");
        let foreign = "-A PREROUTING -p tcp -m tcp --dport 1 -j REDIRECT --to-ports 2";
        assert!(once.starts_with(foreign), "{once}");

        let other = call.linkerd("incoming-proxy-port", json!(5143));
        other.run().succeeded();
        let changed = namespaces.nat(&program);
        assert_eq!(changed, once.replace("4143", "5143"), "{mode}");
    }
}

#[test]
fn no_rule_is_left_if_the_rules_of_one_family_fail() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let bin = tempfile::tempdir().unwrap();
    for name in ["ip6tables-nft", "ip6tables-nft-restore"] {
        write_program(&bin.path().join(name), "echo no ip6 here >&2\nexit 3");
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/bin", bin.path().display());
    let (code, msg) = Call::new("ADD", &namespaces.path(), &api)
        .env("PATH", &path)
        .linkerd("ipv6", json!(true))
        .run()
        .error();
    assert_eq!(code, 121);
    assert!(msg.contains("no ip6 here"), "{msg}");
    assert_eq!(namespaces.nat("iptables-nft"), "");
    assert!(!namespaces.run("iptables-nft-save", &[]).contains("PROXY_INIT"));
}

#[test]
fn iptables_is_found_without_a_path_variable() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    Call::new("ADD", &namespaces.path(), &api).env("PATH", "").run().succeeded();
    assert!(namespaces.nat("iptables-nft").contains("PROXY_INIT_OUTPUT"));
}

#[test]
fn a_meshed_pod_takes_two_requests_and_an_unmeshed_pod_takes_one() {
    let init = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"linkerd-proxy"}],"initContainers":[{"name":"linkerd-init"}]}}"#;
    let pod = format!("GET {POD_PATH}");
    let namespace = format!("GET {NAMESPACE_PATH}");
    let cases = [
        ("meshed", MESHED, vec![pod.clone(), namespace], true),
        ("unmeshed", UNMESHED, vec![pod.clone()], false),
        ("linkerd-init", init, vec![pod], false),
    ];
    for (name, body, requests, redirected) in cases {
        let (api, namespaces) = (Api::start(), Namespaces::new());
        api.answer(POD_PATH, 200, body).answer(NAMESPACE_PATH, 200, NAMESPACE);
        let outcome = Call::new("ADD", &namespaces.path(), &api).run().succeeded();
        assert_eq!(api.requests(), requests, "{name}");
        assert_eq!(!namespaces.nat("iptables-nft").is_empty(), redirected, "{name}");
        assert_eq!(outcome.json()["ips"][0]["address"], "10.99.0.1/24", "{name}");
    }
}

#[test]
fn a_container_that_is_not_a_pod_is_skipped_without_a_request() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    for args in ["", "IgnoreUnknown=1", "K8S_POD_NAME=web"] {
        Call::new("ADD", &namespaces.path(), &api).env("CNI_ARGS", args).run().succeeded();
    }
    assert!(api.requests().is_empty());
    assert_eq!(namespaces.nat("iptables-nft"), "");
}

#[test]
fn failures_are_error_objects_and_leave_no_rule() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let add = || Call::new("ADD", &namespaces.path(), &api);
    let bad = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID,
            "annotations": {"config.linkerd.io/proxy-uid": "abc"}},
        "spec": {"containers": [{"name": "linkerd-proxy"}]},
    });
    let bad = bad.to_string();
    let responses = [
        (
            "not found",
            404,
            r#"{"message":"pods \"web\" not found"}"#,
            103,
            "HTTP 404: pods \"web\" not found",
        ),
        ("forbidden", 403, r#"{"message":"no"}"#, 102, "HTTP 403: no"),
        ("unauthorized", 401, r#"{"message":"Unauthorized"}"#, 102, "HTTP 401: Unauthorized"),
        ("server error", 500, "oops", 104, "HTTP 500: oops"),
        ("redirect", 302, "", 104, "HTTP 302"),
        ("empty object", 200, "{}", 104, "missing field `metadata`"),
        ("null", 200, "null", 104, "invalid type: null"),
        ("list", 200, "[]", 104, "unexpected list, expected an object"),
        (
            "pod list",
            200,
            r#"{"kind":"PodList","metadata":{},"items":[]}"#,
            104,
            "unexpected kind of object, expected Pod",
        ),
        ("truncated response", 200, r#"{"metadata":"#, 104, "EOF while parsing"),
        ("invalid annotation", 200, &bad, 110, "config.linkerd.io/proxy-uid: \"abc\""),
    ];
    for (name, status, body, code, text) in responses {
        api.answer(POD_PATH, status, body);
        let outcome = add().run();
        let (got, msg) = outcome.error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(msg.contains(text), "{name}: {msg}");
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains(api::TOKEN), "{name}");
    }
    api.answer(POD_PATH, 200, MESHED);
    let calls = [
        (
            "no kubeconfig file",
            add().set("kubernetes", json!({"kubeconfig": "/no/such"})),
            100,
            "cannot read /no/such",
        ),
        ("no kubeconfig", add().set("kubernetes", json!({})), 100, "\"kubeconfig\" is not set"),
        (
            "invalid port",
            add().linkerd("incoming-proxy-port", json!(70000)),
            7,
            "70000 is not a port of the proxy",
        ),
        (
            "invalid mode",
            add().linkerd("iptables-mode", json!("bogus")),
            7,
            "\"bogus\" is not one of",
        ),
        (
            "invalid type",
            add().linkerd("proxy-uid", json!("2102")),
            7,
            "\"proxy-uid\": \"2102\" is not a whole number",
        ),
        ("no linkerd object", add().set("linkerd", json!({})), 7, "proxy-uid"),
        ("invalid args", add().env("CNI_ARGS", "a"), 4, "CNI_ARGS: invalid pair \"a\""),
        (
            "no such netns",
            add().env("CNI_NETNS", "/no/such/netns"),
            8,
            "cannot open network namespace /no/such/netns",
        ),
        ("own netns", add().env("CNI_NETNS", "/proc/self/ns/net"), 8, "should not be the same"),
        (
            "foreign prevResult",
            add().set("prevResult", json!({"cniVersion": "9.9.9"})),
            6,
            "unsupported CNI result version \"9.9.9\"",
        ),
        (
            "prevResult of a wrong type",
            add().set("prevResult", json!("x")),
            6,
            "could not parse prevResult",
        ),
    ];
    for (name, call, code, text) in calls {
        let (got, msg) = call.run().error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(msg.contains(text), "{name}: {msg}");
    }
    assert_eq!(namespaces.nat("iptables-nft"), "");
}

#[test]
fn an_unreachable_api_server_fails_the_pod_and_the_error_has_its_url() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let call = Call::new("ADD", &namespaces.path(), &api);
    let kubeconfig = api.kubeconfig().replace(&api.address.port().to_string(), "1");
    let path = call.config["kubernetes"]["kubeconfig"].as_str().unwrap();
    fs::write(path, kubeconfig).unwrap();
    let (code, msg) = call.run().error();
    assert_eq!(code, 101, "{msg}");
    assert!(msg.contains("https://127.0.0.1:1/api/v1/namespaces/ns/pods/web"), "{msg}");
}

#[test]
fn proxy_variables_of_the_runtimes_environment_are_ignored() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    Call::new("ADD", &namespaces.path(), &api)
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1")
        .run()
        .succeeded();
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn simulate_logs_the_rules_and_installs_none() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let outcome = Call::new("ADD", &namespaces.path(), &api)
        .linkerd("simulate", json!(true))
        .run()
        .succeeded();
    assert!(outcome.stderr.contains("-A PROXY_INIT_OUTPUT"), "{}", outcome.stderr);
    assert_eq!(namespaces.nat("iptables-nft"), "");
}

#[test]
fn check_names_the_missing_rules() {
    for mode in ["native", "nft", "legacy"] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        let call = |command| {
            Call::new(command, &namespaces.path(), &api).linkerd("iptables-mode", json!(mode))
        };
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122, "{msg}");
        call("ADD").run().succeeded();
        assert_eq!(call("CHECK").run().succeeded().stdout, "");
        if mode == "native" {
            let delete = "nft -a list table ip linkerd-cni | sed -n 's/.*ignore-loopback.*handle //p' | xargs nft delete rule ip linkerd-cni PROXY_INIT_OUTPUT handle";
            namespaces.run("sh", &["-c", delete]);
        } else {
            let program = iptables(mode, false);
            namespaces.run(&program, &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "2"]);
        }
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122);
        assert!(msg.contains("-o lo") && !msg.contains("uid-owner"), "{msg}");
        let (code, _) = call("CHECK").set("prevResult", Value::Null).run().error();
        assert_eq!(code, 7);
    }
}

#[test]
fn check_fails_if_a_foreign_rule_precedes_linkerds_rules() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        let call = |command| {
            Call::new(command, &namespaces.path(), &api).linkerd("iptables-mode", json!(mode))
        };
        call("ADD").run().succeeded();
        if mode == "native" {
            let insert = "insert rule ip linkerd-cni PROXY_INIT_OUTPUT return";
            namespaces.run("nft", &insert.split(' ').collect::<Vec<_>>());
        } else {
            let insert = "-t nat -I PROXY_INIT_OUTPUT -j RETURN";
            namespaces.run(&iptables(mode, false), &insert.split(' ').collect::<Vec<_>>());
        }
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122, "{mode}");
        let is_named = msg.contains("PROXY_INIT_OUTPUT") && !msg.contains("PROXY_INIT_REDIRECT");
        assert!(is_named, "{mode}: {msg}");
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
    }
}

#[test]
fn del_gc_and_status_succeed_without_netns_kubeconfig_and_api_server() {
    let api = Api::start();
    let call = |command| {
        Call::new(command, Path::new("/no/such/netns"), &api)
            .set("cniVersion", json!("1.1.0"))
            .set("kubernetes", json!({"kubeconfig": "/no/such"}))
    };
    for command in ["DEL", "GC", "STATUS"] {
        assert_eq!(call(command).run().succeeded().stdout, "", "{command}");
    }
    let closed = call("DEL").env("CNI_NETNS", "").set("prevResult", Value::Null);
    assert_eq!(closed.run().succeeded().stdout, "");
    // Multus caches only these members of a plugin's config.
    let cached = r#"{"cniVersion":"1.0.0","name":"n","type":"linkerd-cni","ipam":{},
        "capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#;
    assert_eq!(call("DEL").run_with(cached).succeeded().stdout, "");
    assert!(api.requests().is_empty());
}

#[test]
fn prev_result_is_passed_on_byte_for_byte_in_every_version() {
    let api = Api::start();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let call = Call::new("ADD", Path::new("/no/such/netns"), &api).env("CNI_ARGS", "");
        let previous = format!(
            r#"{{"cniVersion":"{version}","z":12345678901234567890,"ips":[{{"address":"10.0.0.1/8","x":1e3}}],"dns":{{"a":"\u003c"}}}}"#
        );
        let stdin = format!(r#"{{"cniVersion":"{version}","name":"n","prevResult":{previous}}}"#);
        assert_eq!(call.run_with(&stdin).succeeded().stdout, previous);
        let alone = format!(r#"{{"cniVersion":"{version}","name":"n"}}"#);
        let wanted = format!(r#"{{"cniVersion":"{version}"}}"#);
        assert_eq!(call.run_with(&alone).succeeded().stdout, wanted);
    }
}

#[test]
fn invalid_requests_get_the_codes_and_messages_of_the_reference_implementation() {
    let api = Api::start();
    let netns = Path::new("/no/such/netns");
    let good = r#"{"cniVersion":"1.0.0","name":"n"}"#;
    let add = || Call::new("ADD", netns, &api).env("CNI_ARGS", "");
    let cases = [
        (add().env("CNI_COMMAND", ""), good, 4, "required env variables [CNI_COMMAND] missing"),
        (add().env("CNI_COMMAND", "FOO"), good, 4, "unknown CNI_COMMAND: FOO"),
        (add().env("CNI_COMMAND", "add"), good, 4, "unknown CNI_COMMAND: add"),
        (add().env("CNI_COMMAND", "FOO"), "", 6, "error unmarshall network config: "),
        (
            add().env("CNI_NETNS", "").env("CNI_PATH", ""),
            good,
            4,
            "required env variables [CNI_NETNS,CNI_PATH] missing",
        ),
        (add().env("CNI_CONTAINERID", "a/b"), good, 4, "invalid characters in containerID"),
        (add().env("CNI_CONTAINERID", "-a"), good, 4, "invalid characters in containerID"),
        (add().env("CNI_IFNAME", "0123456789abcdef"), good, 4, "interface name is too long"),
        (add().env("CNI_IFNAME", ".."), good, 4, "interface name is . or .."),
        (
            add().env("CNI_IFNAME", "a b"),
            good,
            4,
            "interface name contains / or : or whitespace characters",
        ),
        (add(), "", 6, "error unmarshall network config: "),
        (add(), "[]", 6, "error unmarshall network config: "),
        (add(), "\u{feff}{}", 6, "error unmarshall network config: "),
        (add(), r#"{"name":"n"} x"#, 6, "error unmarshall network config: "),
        (add(), r#"{"name":1}"#, 6, "error unmarshall network config: "),
        (add(), "{}", 7, "missing network name"),
        (add(), "null", 7, "missing network name"),
        (add(), r#"{"name":"a/b"}"#, 7, "invalid characters found in network name"),
        (add(), r#"{"name":"n","cniVersion":1}"#, 6, "decoding version from network config: "),
        (add(), r#"{"name":"n","cniVersion":"9.8.7"}"#, 1, "incompatible CNI versions"),
        (add().env("CNI_COMMAND", "STATUS"), good, 1, "config version does not allow STATUS"),
        (add().env("CNI_COMMAND", "GC"), good, 1, "config version does not allow GC"),
        (
            add().env("CNI_COMMAND", "CHECK"),
            r#"{"name":"n","cniVersion":"0.3.1"}"#,
            1,
            "config version does not allow CHECK",
        ),
    ];
    for (call, stdin, code, text) in cases {
        let (got, msg) = call.run_with(stdin).error();
        assert_eq!(got, code, "{stdin}: {msg}");
        assert!(msg.starts_with(text), "{stdin}: {msg}");
    }
}

#[test]
fn deeply_nested_and_huge_input_yields_a_result_or_an_error() {
    let api = meshed_api();
    let meshed = Call::new("ADD", Path::new("/no/such/netns"), &api);
    let kubeconfig = json!(meshed.kubeconfig());
    let add = Call::new("ADD", Path::new("/no/such/netns"), &api).env("CNI_ARGS", "");
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let foreign = format!(r#"{{"name":"n","x":{nested}}}"#);
    add.run_with(&foreign).succeeded();
    let entry = format!(
        r#"{{"name":"n","kubernetes":{{"kubeconfig":{kubeconfig}}},"linkerd":{{"x":{nested}}}}}"#
    );
    add.run_with(&entry).succeeded();
    assert_eq!(meshed.run_with(&entry).error().0, 7);
    let huge = format!(r#"{{"name":"n","x":"{}"}}"#, "x".repeat(20 << 20));
    assert_eq!(add.run_with(&huge).error().0, 5);
}

#[test]
fn version_needs_neither_environment_nor_stdin() {
    let output = Command::new(PLUGIN)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap(), @r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#);
}
