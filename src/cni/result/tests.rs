use super::*;

const V1: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"eth0","mtu":1450,"sandbox":"/n","socketPath":"/s","pciID":"0"}],"ips":[{"address":"10.244.1.7/24","gateway":"10.244.1.1","interface":1},{"address":"10.244.1.8/24","interface":1},{"address":"fd00::7/64","gateway":"fd00::1","interface":1}],"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1","mtu":1400},{"dst":"::/0"}],"dns":{},"x":1e3}"#;
const V040: &str = r#"{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"}],"ips":[{"version":"4","address":"10.0.0.7/24","interface":0,"x":1.0},{"version":"6","address":"fd00::7/64"}],"routes":[{"dst":"::/0"}],"dns":{"nameservers":["\u0031"]}}"#;
const V020: &str = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.7/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]},"ip6":{"ip":"fd00::7/64","routes":[{"dst":"::/0"}]},"dns":{},"x":12345678901234567890}"#;

fn converted(previous: &str, wanted: &str) -> Result<String, Error> {
    convert_to(Some(serde_json::from_str(previous).unwrap()), wanted)
}

#[test]
fn between_versions_of_one_format_only_cni_version_changes() {
    let formats: [(&str, &str, &[&str]); 3] = [
        (V020, "0.2.0", &["0.1.0", "0.2.0"]),
        (V040, "0.4.0", &["0.3.0", "0.3.1", "0.4.0"]),
        (V1, "1.1.0", &["1.0.0", "1.1.0"]),
    ];
    for (text, own, versions) in formats {
        for version in versions {
            let wanted = text.replace(own, version);
            assert_eq!(converted(text, version).unwrap(), wanted, "{version}");
        }
    }
}

#[test]
fn a_result_is_converted_to_the_format_of_the_requests_version() {
    let cases = [
        // The newer members of interfaces are removed, those of routes stay.
        (
            V1,
            "0.3.1",
            r#"{"cniVersion":"0.3.1","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/n"}],"ips":[{"version":"4","address":"10.244.1.7/24","gateway":"10.244.1.1","interface":1},{"version":"4","address":"10.244.1.8/24","interface":1},{"version":"6","address":"fd00::7/64","gateway":"fd00::1","interface":1}],"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1","mtu":1400},{"dst":"::/0"}],"dns":{},"x":1e3}"#,
        ),
        // Only the first address of each family stays, and the old members of routes.
        (
            V1,
            "0.2.0",
            r#"{"cniVersion":"0.2.0","dns":{},"x":1e3,"ip4":{"ip":"10.244.1.7/24","gateway":"10.244.1.1","routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1"}]},"ip6":{"ip":"fd00::7/64","gateway":"fd00::1","routes":[{"dst":"::/0"}]}}"#,
        ),
        (
            V040,
            "1.0.0",
            r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.7/24","interface":0,"x":1.0},{"address":"fd00::7/64"}],"routes":[{"dst":"::/0"}],"dns":{"nameservers":["\u0031"]}}"#,
        ),
        (
            V040,
            "0.1.0",
            r#"{"cniVersion":"0.1.0","dns":{"nameservers":["\u0031"]},"ip4":{"ip":"10.0.0.7/24","x":1.0},"ip6":{"ip":"fd00::7/64","routes":[{"dst":"::/0"}]}}"#,
        ),
        (
            V020,
            "0.4.0",
            r#"{"cniVersion":"0.4.0","dns":{},"x":12345678901234567890,"ips":[{"version":"4","address":"10.0.0.7/24","gateway":"10.0.0.1"},{"version":"6","address":"fd00::7/64"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"},{"dst":"::/0"}]}"#,
        ),
        (
            V020,
            "1.1.0",
            r#"{"cniVersion":"1.1.0","dns":{},"x":12345678901234567890,"ips":[{"address":"10.0.0.7/24","gateway":"10.0.0.1"},{"address":"fd00::7/64"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"},{"dst":"::/0"}]}"#,
        ),
        // Missing and null members are not added.
        (r#"{"cniVersion":"0.2.0","ip4":null}"#, "1.0.0", r#"{"cniVersion":"1.0.0"}"#),
        (r#"{"ips":null,"cniVersion":"1.0.0"}"#, "0.4.0", r#"{"ips":null,"cniVersion":"0.4.0"}"#),
        // Routes of a family without an address are removed.
        (
            r#"{"cniVersion":"0.4.0","ips":[{"version":"6","address":"fd00::7/64"}],"routes":[{"dst":"0.0.0.0/0"}]}"#,
            "0.2.0",
            r#"{"cniVersion":"0.2.0","ip6":{"ip":"fd00::7/64"}}"#,
        ),
    ];
    for (previous, version, wanted) in cases {
        assert_eq!(converted(previous, version).unwrap(), wanted, "{version} of {previous}");
    }
}

#[test]
fn a_missing_result_is_empty_and_a_missing_version_is_the_requests() {
    let empty = convert_to(None, "0.2.0").unwrap();
    assert_eq!(empty, r#"{"cniVersion":"0.2.0"}"#);
    for previous in [r#"{"x":1}"#, r#"{"cniVersion":"","x":1}"#] {
        let result = converted(previous, "1.0.0").unwrap();
        assert_eq!(result, r#"{"cniVersion":"1.0.0","x":1}"#);
    }
}

#[test]
fn a_result_that_cannot_be_converted_is_rejected_with_the_reason() {
    let cases = [
        (
            r#"{"cniVersion":"1.0.0","interfaces":[]}"#,
            "0.2.0",
            "could not parse prevResult: 1.0.0 to 0.2.0: cannot convert: no valid IP addresses",
        ),
        (
            r#"{"cniVersion":"5678.456"}"#,
            "1.0.0",
            "could not parse prevResult: unsupported CNI result version \"5678.456\"",
        ),
        (
            r#"{"cniVersion":"0.4.0","ips":{}}"#,
            "1.0.0",
            "could not parse prevResult: 0.4.0 to 1.0.0: invalid type: map, expected a sequence",
        ),
        (
            r#"{"cniVersion":1}"#,
            "1.0.0",
            "could not parse prevResult: invalid type: integer `1`, expected a string",
        ),
    ];
    for (previous, version, wanted) in cases {
        let error = converted(previous, version).unwrap_err();
        assert_eq!(error.code, code::DECODING_FAILURE, "{previous}");
        assert!(error.msg.starts_with(wanted), "{}", error.msg);
    }
}
