//! Helm refuses values.

use crate::fault_page::{FaultPage, Source};
use crate::helm::{chart, helm};

/// Captures what `helm template` says about values; `helm install` says the same.
fn refused(name: &'static str, values: &[&str]) {
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
fn a_chart_value_of_a_wrong_type_is_rejected() {
    refused("value-rejected", &["proxyUID=root", "iptablesMode=iptables"]);
}

#[test]
fn a_list_of_ports_has_no_valid_element() {
    refused("port-value-rejected", &["ignoreOutboundPorts=mysql"]);
}

#[test]
fn an_image_version_of_upstream_is_rejected() {
    refused("upstream-image", &["image.version=v1.6.4"]);
}
