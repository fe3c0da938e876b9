use std::path::Path;

use serde::Deserialize;

use super::*;

fn access() -> ApiAccess {
    ApiAccess {
        server: server_url("fd00:10:96::1", "443"),
        tls_server_name: Some("api.example".into()),
        ca: b"-----BEGIN CERTIFICATE-----".to_vec(),
        token: Some("secret".into()),
    }
}

fn parsed(text: &str) -> Result<ApiAccess, Error> {
    parse(Path::new("/kc"), text.as_bytes())
}

#[test]
fn rendered_kubeconfig_is_read_back_unchanged() {
    assert_eq!(parsed(&render(&access())).unwrap(), access());
}

#[test]
fn ipv6_host_is_put_in_brackets_once() {
    assert_eq!(server_url("10.96.0.1", "443"), "https://10.96.0.1:443");
    assert_eq!(server_url("fd00::1", "443"), "https://[fd00::1]:443");
    assert_eq!(server_url("[fd00::1]", "443"), "https://[fd00::1]:443");
}

#[test]
fn access_has_an_address_only_if_the_servers_url_contains_an_ip_address() {
    for (host, expected) in [
        ("10.96.0.1", Some("10.96.0.1")),
        ("fd00:10:96::1", Some("fd00:10:96::1")),
        ("kubernetes.default.svc", None),
        ("10.96.0.1.example", None),
    ] {
        let access = ApiAccess { server: server_url(host, "443"), ..access() };
        let expected = expected.map(|address| address.parse().unwrap());
        assert_eq!(access.address(), expected, "{host}");
    }
}

#[test]
fn kubeconfig_of_upstream_in_yaml_is_parsed() {
    let text = "# kubeconfig file\napiVersion: v1\nclusters:\n- name: local\n  cluster:\n    server: https://[fd00:10:96::1]:443\n    tls-server-name: api.example\n    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\nusers:\n- name: linkerd-cni\n  user:\n    token: secret\ncontexts:\n- name: other\n  context: {}\n- name: linkerd-cni-context\n  context:\n    cluster: local\n    user: linkerd-cni";
    assert_eq!(parsed(text).unwrap(), access());
}

/// A row of `invalid.yaml`: a whole text, or one that replaces `from` in a valid kubeconfig.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidRow {
    from: Option<String>,
    text: String,
    error: String,
}

#[test]
fn errors_about_a_kubeconfig_contain_no_secrets() {
    let valid = render(&access());
    for (name, row) in testkit::table::rows::<InvalidRow>(include_str!("tests/invalid.yaml")) {
        let text = match &row.from {
            Some(from) => valid.replace(from, &row.text),
            None => row.text,
        };
        let message = parsed(&text).unwrap_err().to_string();
        assert_eq!(message, format!("kubeconfig /kc: {}", row.error), "{name}");
        assert!(!message.contains("secret"), "{name}");
    }
}
