//! The CNI protocol: commands without work, `prevResult`, invalid requests, and versions.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::api::Api;
use super::{Call, PLUGIN, meshed_api};

#[test]
fn del_gc_and_status_succeed_without_netns_kubeconfig_and_api_server() {
    let api = Api::start();
    let call = |command| {
        Call::new(command, Path::new("/no/such/netns"), &api)
            .set("cniVersion", "1.1.0")
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
        // The version of the result that another plugin returns may differ.
        let stdin = format!(r#"{{"cniVersion":"1.0.0","name":"n","prevResult":{previous}}}"#);
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
    let with = |name: &str, value: &str| add().env(name, value);
    let config = "error unmarshall network config: ";
    let interface = "interface name contains / or : or whitespace characters";
    let old = r#"{"name":"n","cniVersion":"0.3.1"}"#;
    for (call, stdin, code, text) in [
        (with("CNI_COMMAND", ""), good, 4, "required env variables [CNI_COMMAND] missing"),
        (with("CNI_COMMAND", "FOO"), good, 4, "unknown CNI_COMMAND: FOO"),
        (with("CNI_COMMAND", "add"), good, 4, "unknown CNI_COMMAND: add"),
        (with("CNI_COMMAND", "FOO"), "", 6, config),
        (
            with("CNI_NETNS", "").env("CNI_PATH", ""),
            good,
            4,
            "required env variables [CNI_NETNS,CNI_PATH] missing",
        ),
        (with("CNI_CONTAINERID", "a/b"), good, 4, "invalid characters in containerID"),
        (with("CNI_CONTAINERID", "-a"), good, 4, "invalid characters in containerID"),
        (with("CNI_IFNAME", "0123456789abcdef"), good, 4, "interface name is too long"),
        (with("CNI_IFNAME", ".."), good, 4, "interface name is . or .."),
        (with("CNI_IFNAME", "a b"), good, 4, interface),
        (add(), "", 6, config),
        (add(), "[]", 6, config),
        (add(), "\u{feff}{}", 6, config),
        (add(), r#"{"name":"n"} x"#, 6, config),
        (add(), r#"{"name":1}"#, 6, config),
        (add(), "{}", 7, "missing network name"),
        (add(), "null", 7, "missing network name"),
        (add(), r#"{"name":"a/b"}"#, 7, "invalid characters found in network name"),
        (add(), r#"{"name":"n","cniVersion":1}"#, 6, "decoding version from network config: "),
        (add(), r#"{"name":"n","cniVersion":"9.8.7"}"#, 1, "incompatible CNI versions"),
        (with("CNI_COMMAND", "STATUS"), good, 1, "config version does not allow STATUS"),
        (with("CNI_COMMAND", "GC"), good, 1, "config version does not allow GC"),
        (with("CNI_COMMAND", "CHECK"), old, 1, "config version does not allow CHECK"),
    ] {
        println!("{stdin}");
        let outcome = call.run_with(stdin);
        let (_, msg) = outcome.failed(code, text).error();
        assert!(msg.starts_with(text), "{msg}");
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
    meshed.run_with(&entry).failed(7, "");
    let huge = format!(r#"{{"name":"n","x":"{}"}}"#, "x".repeat(20 << 20));
    add.run_with(&huge).failed(5, "");
}

#[test]
fn version_needs_only_cni_command() {
    let output = Command::new(PLUGIN)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap(), @r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#);
}
