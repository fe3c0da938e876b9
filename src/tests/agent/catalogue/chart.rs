//! Captures chart values that Helm rejects.

use crate::fault_page::{FaultPage, Source};
use crate::helm::{chart, helm};

/// Captures the error of `helm template` for each value. `helm install` prints the same error.
fn assert_rejected(name: &'static str, values: &[&str]) {
    let chart = chart();
    let mut page = FaultPage::new(name);
    for value in values {
        let args = [
            "template",
            "linkerd-cni",
            chart.to_str().unwrap(),
            "--namespace=linkerd-cni",
            "--set",
            value,
        ];
        let output = helm(&args);
        assert!(!output.status.success(), "{value}");
        let error = String::from_utf8(output.stderr).unwrap();
        page.shows(Source::Helm, &format!("$ helm template ... --set {value}\n{error}"));
    }
    page.assert_documented();
}

#[test]
fn chart_value_of_a_wrong_type_is_rejected() {
    assert_rejected("value-rejected", &["proxyUID=root", "iptablesMode=iptables"]);
}

#[test]
fn port_list_without_a_valid_element_is_rejected() {
    assert_rejected("port-value-rejected", &["ignoreOutboundPorts=mysql"]);
}

#[test]
fn image_version_of_upstream_is_rejected() {
    assert_rejected("upstream-image", &["image.version=v1.6.4"]);
}
