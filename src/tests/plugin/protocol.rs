//! Tests the CNI protocol: commands that do nothing, `prevResult`, invalid requests, and versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table;

use super::api::Api;
use super::{Call, PLUGIN, start_meshed_api};

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
    // Multus caches only these keys of a plugin's config, and calls DEL with them.
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
        // A result without a version gets the version of the request.
        for (previous, more) in [("null", ""), (r#"{"x":1}"#, r#","x":1"#)] {
            let stdin = alone.replace('}', &format!(r#","prevResult":{previous}}}"#));
            let wanted = wanted.replace('}', &format!("{more}}}"));
            assert_eq!(call.run_with(&stdin).succeeded().stdout, wanted);
        }
    }
}

const WITHOUT_IPS: [&str; 2] = ["0.1.0", "0.2.0"];
const WITH_ADDRESS_VERSIONS: [&str; 3] = ["0.3.0", "0.3.1", "0.4.0"];
const WITH_IPS: [&str; 2] = ["1.0.0", "1.1.0"];

/// `prevResult` may have a different version than the config.
#[test]
fn result_has_the_version_of_the_config() {
    let api = Api::start();
    let call = Call::new("ADD", Path::new("/no/such/netns"), &api).env("CNI_ARGS", "");
    let add = |config: &str, previous: &str, members: &str| {
        let stdin = format!(
            r#"{{"cniVersion":"{config}","name":"n","prevResult":{{"cniVersion":"{previous}",{members}}}}}"#
        );
        call.run_with(&stdin).succeeded().stdout
    };
    let result =
        |version: &str, members: &str| format!(r#"{{"cniVersion":"{version}",{members}}}"#);
    let old = r#""ip4":{"ip":"10.0.0.1/8"},"z":12345678901234567890"#;
    let with_versions = r#""ips":[{"version":"4","address":"10.0.0.1/8","x":1e3}],"dns":{}"#;
    let new = r#""ips":[{"address":"10.0.0.1/8","x":1e3},{"address":"fd00::1/64"}],"dns":{}"#;
    let new_with_versions = r#""ips":[{"version":"4","address":"10.0.0.1/8","x":1e3},{"version":"6","address":"fd00::1/64"}],"dns":{}"#;
    let with_ips = [&WITH_ADDRESS_VERSIONS[..], &WITH_IPS].concat();
    for previous in WITHOUT_IPS {
        for config in WITHOUT_IPS {
            assert_eq!(add(config, previous, old), result(config, old));
        }
        // Results without the list `ips` are not converted to newer versions.
        for config in &with_ips {
            assert_eq!(add(config, previous, old), result(previous, old));
        }
    }
    for config in WITHOUT_IPS {
        for previous in &with_ips {
            assert_eq!(add(config, previous, new), result(previous, new));
        }
    }
    for config in &with_ips {
        for previous in WITH_ADDRESS_VERSIONS {
            assert_eq!(add(config, previous, with_versions), result(config, with_versions));
        }
        let is_new = WITH_IPS.contains(config);
        for previous in WITH_IPS {
            let wanted = if is_new { new } else { new_with_versions };
            assert_eq!(add(config, previous, new), result(config, wanted), "{previous}");
            // Without a valid list of addresses, only the version changes.
            for other in [r#""ips":{},"x":1"#, r#""ips":[1]"#, r#""ips":null"#, r#""x":1"#] {
                assert_eq!(add(config, previous, other), result(config, other), "{previous}");
            }
        }
    }
}

/// A row of `protocol.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidRequestRow {
    #[serde(default)]
    variables: BTreeMap<String, String>,
    stdin: String,
    code: u64,
    error: String,
    details: Option<String>,
}

#[test]
fn invalid_requests_get_the_codes_and_messages_of_the_reference_implementation() {
    let api = Api::start();
    for (name, row) in table::rows::<InvalidRequestRow>(include_str!("protocol.yaml")) {
        let mut call = Call::new("ADD", Path::new("/no/such/netns"), &api).env("CNI_ARGS", "");
        for (variable, value) in row.variables {
            call = call.env(&variable, value);
        }
        let outcome = call.run_with(&row.stdin);
        let (_, msg) = outcome.failed(row.code, &row.error).error();
        assert!(msg.starts_with(&row.error), "{name}: {msg}");
        if let Some(details) = row.details {
            outcome.advises(&details);
        }
    }
}

#[test]
fn deeply_nested_or_huge_input_gets_a_result_or_an_error() {
    let api = start_meshed_api();
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
