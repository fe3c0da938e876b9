//! Pods that started before an upgrade to other values: they keep their rules.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::helm::NAMESPACE;
use crate::node::netns_of;
use crate::pods::{self, Pods, kubectl};
use crate::repair::set;
use crate::scene::Scene;
use crate::until::until;

const NAMES: [&str; 3] = ["drift-a", "drift-b", "drift-c"];
/// Values with which pods get other rules than with the defaults.
const OTHER_VALUES: [&str; 2] =
    ["--set-string=ignoreOutboundPorts=7777", "--set=disableIPv6=false"];
/// Interval of the audit, in seconds.
const PERIOD: u64 = 3;

#[test]
fn running_pods_keep_their_rules_after_an_upgrade_and_get_their_own_rules_back() {
    let scene = Scene::installed(&[&set("delete", PERIOD)]);
    let Scene { helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    // StatefulSets, as mode delete leaves pods without a controller.
    pods.create(&NAMES.map(|name| pods::stateful(&pods::meshed(name))));
    for name in NAMES {
        until("the pod runs", || !pods.ip(name).is_empty());
        pods.until_ready(name);
    }
    let state = || NAMES.map(|name| (pods.field(name, ".metadata.uid"), ruleset(pods, name)));
    let started = state();
    for (_, ruleset) in &started {
        assert!(ruleset.contains("table ip linkerd-cni"), "{ruleset}");
        assert!(!ruleset.contains("table ip6 linkerd-cni"), "{ruleset}");
    }
    assert_eq!(drift_events(), 0);

    for mode in ["delete", "in-place"] {
        helm.run("upgrade", &[&set(mode, PERIOD), OTHER_VALUES[0], OTHER_VALUES[1]]);
        until("some audits", || metric("audits_total") >= 3);
        assert_eq!(metric("audit_pods_drifted"), 3, "{mode}");
        for unused in ["audit_pods_incomplete_total", "pods_deleted_total", "pods_repaired_total"] {
            assert_eq!(metric(unused), 0, "{mode}: {unused}");
        }
        assert_eq!(state(), started, "{mode}");
        assert_eq!(drift_events(), 1, "the second upgrade changes no value of the plugin");
    }

    netns_of(&pods.ip(NAMES[1])).flush_redirect();
    until("the pod is repaired", || metric("pods_repaired_total") == 1);
    assert_eq!(state(), started);
    pods.assert_answers("client", NAMES[1], "proxy-inbound");

    pods.start(&[pods::meshed("drift-new")]);
    let new = ruleset(pods, "drift-new");
    assert!(new.contains("ignore-port-7777") && new.contains("table ip6 linkerd-cni"), "{new}");
    scene.remove();
}

fn ruleset(pods: &Pods, name: &str) -> String {
    netns_of(&pods.ip(name)).output(&["nft", "list", "ruleset"])
}

/// Number of Events about drift on the node.
fn drift_events() -> usize {
    let reason = "reason=LinkerdCNIRulesDrifted,involvedObject.kind=Node";
    let events = kubectl(&format!("get events -n default -o name --field-selector {reason}"));
    events.lines().count()
}

/// A metric of the only repair controller; 0 while it cannot be read.
fn metric(name: &str) -> u64 {
    let ip = "jsonpath={.items[0].status.podIP}";
    let ip = kubectl(&format!("get pods -n {NAMESPACE} -l k8s-app=linkerd-cni -o {ip}"));
    let Ok(address) = format!("{ip}:9990").parse() else { return 0 };
    let Ok(text) = response(address) else { return 0 };
    let name = format!("linkerd_cni_repair_controller_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().unwrap())
}

fn response(address: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(5);
    // The pod of before the upgrade may just have ended, and its address answers no more.
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
