//! Checks of primary CNIs with daemons: restarts of the daemons, and Calico's network policies.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testkit::chart::yaml;
use testkit::child::script;
use testkit::cluster::families::Family;
use testkit::cluster::kubectl::{kubectl, kubectl_with_stdin};
use testkit::cluster::node::Files;
use testkit::cluster::pods::Pods;
use testkit::until::until_within;

/// Calico's credential. Its content changes, because Calico's daemon and init container write the
/// file again at every start.
const CALICO_KUBECONFIG: &str = "/etc/cni/net.d/calico-kubeconfig";
/// Plugins whose times change, because the agents of Multus and Istio copy them repeatedly.
const COPIED: [&str; 3] =
    ["/opt/cni/bin/multus", "/opt/cni/bin/multus-shim", "/opt/cni/bin/istio-cni"];
const POLICY: Duration = Duration::from_secs(60);

/// Runs a command of `scripts/cluster`.
pub fn cluster(command: &str) -> String {
    script("cluster", &[command])
}

/// Makes the primary CNI write its network config again.
pub fn rewrite_config() {
    cluster("rewrite-network");
}

/// Returns the names of the primary CNI's daemons, separated by spaces.
pub fn daemons() -> String {
    cluster("network-daemons").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the files without what other programs than the agent change on their own.
pub fn unchanging(files: &Files) -> Files {
    let mut files = files.clone();
    if let Some((_, _, size, hash)) = files.get_mut(Path::new(CALICO_KUBECONFIG)) {
        *size = 0;
        *hash = 0;
    }
    for path in COPIED {
        if let Some((_, _, _, hash)) = files.get_mut(Path::new(path)) {
            *hash = 0;
        }
    }
    files
}

/// Checks that network policies are applied to the ports that pods connect to, not to the proxy's
/// ports, because the redirection happens inside of the pods.
pub fn policies(pods: &Pods) -> String {
    let family = Family::all()[0];
    let meshed = pods.ip_of("meshed", family);
    let unmeshed = pods.ip_of("unmeshed", family);
    let to_meshed = |port| pods.connect("unmeshed", "app", &family.to(&meshed, port));
    let from_proxy = || pods.connect("meshed", "linkerd-proxy", &family.to(&unmeshed, 8080));

    apply_policy("Ingress", 8080);
    until_within(POLICY, "port 9999 is denied", || to_meshed(9999) == "timeout");
    // The policy allows the app's port.
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");

    apply_policy("Ingress", 4143);
    until_within(POLICY, "the app's port is denied", || to_meshed(8080) == "timeout");

    apply_policy("Egress", 9999);
    until_within(POLICY, "the proxy's connections are denied", || from_proxy() == "timeout");
    // This policy has replaced that for ingress, so inbound connections are allowed again.
    // Connections from the app to its proxy do not leave the pod, so no policy applies to them.
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");
    pods.assert_answers("meshed", "unmeshed", "proxy-outbound");

    kubectl("delete networkpolicy ports -n meshed");
    until_within(POLICY, "no policy is left", || from_proxy().starts_with("app-of-unmeshed"));
    "they see the ports from before the redirection".to_owned()
}

fn apply_policy(direction: &str, port: u16) {
    let rules = direction.to_lowercase();
    let mut policy = yaml(include_str!("policy.yaml"));
    policy["spec"]["policyTypes"] = json!([direction]);
    policy["spec"][rules] = json!([{"ports": [{"port": port, "protocol": "TCP"}]}]);
    kubectl_with_stdin("apply -f -", &policy.to_string());
}
