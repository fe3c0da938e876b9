//! Tests audits of running pods in real network namespaces. Needs root.

use std::time::{Duration, Instant};

use linkerd2_cni::redirect::backend_order::Backend;
use linkerd2_cni::redirect::{Family, RuleSpec};
use linkerd2_cni::{firewall, netns};
use serde_json::json;

use crate::api::Answer;
use crate::namespaces::NEIGHBOUR;
use crate::node::{Connection, Node, entry, meshed, redirect, running};
use crate::until::{until, until_within};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn audit_restores_flushed_rules_without_breaking_connections() {
    let node = meshed("native");
    let mut connection = Connection::through(&node);
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audit_pods_complete_total", 1);
    // For a pod with all its rules, the audit reads only from the API server's cache.
    let reads = |query: &str| {
        let path = format!("/api/v1/namespaces/emojivoto{query}");
        let reads = node.api.received(|request| request.path == path);
        reads.len()
    };
    assert!(reads("?resourceVersion=0") >= 1);
    assert_eq!(reads(""), 0);

    let flush = ["flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_OUTPUT"];
    node.namespaces.run("nft", &flush);
    let flushed = Instant::now();
    while !node.ruleset().contains("redirect to :4140") {
        connection.exchanges_data();
        assert!(flushed.elapsed() < 50 * SECOND);
    }
    controller.until_metric_is("pods_repaired_total", 1);
    connection.exchanges_data();
    until("an event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");

    // The pod loses its rules again within a minute. The repair is delayed, and an Event reports
    // this once.
    node.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
    until("the repair is delayed", || controller.metric("pods_held_total") >= 1);
    assert_eq!(node.ruleset(), "");
    assert_eq!(controller.metric("pods_repaired_total"), 1);
    until("a second event", || node.events().len() == 2);
    assert_eq!(node.events()[1]["action"], "Skipping");
}

#[test]
fn audit_repairs_rules_that_the_kernel_does_not_evaluate() {
    for damage in [
        "add table ip linkerd-cni { flags dormant; }",
        "chain ip linkerd-cni OUTPUT { policy drop; }",
        "flush chain ip linkerd-cni OUTPUT; delete chain ip linkerd-cni OUTPUT; \
         add chain ip linkerd-cni OUTPUT; add rule ip linkerd-cni OUTPUT \
         jump PROXY_INIT_OUTPUT comment \"proxy-init/install-proxy-init-output\"",
    ] {
        let node = meshed("native");
        let whole = node.ruleset();
        node.namespaces.run("nft", &[damage]);
        assert_ne!(node.ruleset(), whole, "{damage}");
        let _controller = node.repaired();
        assert_eq!(node.ruleset(), whole, "{damage}");
    }
}

/// The connection is idle until the rules are restored. Without any rules, the kernel does not
/// track connections, so a packet would bypass the proxy.
#[test]
fn idle_connection_survives_the_loss_of_the_whole_table() {
    let node = meshed("native");
    let mut connection = Connection::through(&node);
    connection.exchanges_data();
    node.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
    let _controller = node.repaired();
    connection.exchanges_data();
}

#[test]
fn iptables_rules_are_repaired_only_if_a_rule_is_missing_or_bypassed() {
    for (damage, responder) in [
        (&["-D", "PROXY_INIT_OUTPUT", "1"][..], "proxy"),
        (&["-I", "PROXY_INIT_OUTPUT", "-j", "RETURN"], "server"),
    ] {
        let node = meshed("nft");
        node.namespaces.serve_in_neighbour("server", 80);
        node.namespaces.serve_in_pod("proxy", 4140);
        let before = node.ruleset();
        let controller = node.auditing(&[]);
        controller.until_metric_reaches("audit_pods_complete_total", 2);
        assert_eq!(node.ruleset(), before);
        drop(controller);

        node.namespaces.run("iptables-nft", &[&["-t", "nat"], damage].concat());
        assert_eq!(node.response(), format!("{responder} {}:80", NEIGHBOUR[0]));
        let _controller = node.repaired();
        assert_eq!(node.response(), format!("proxy {}:80", NEIGHBOUR[0]));
        let ruleset = node.ruleset();
        assert_eq!(ruleset.matches("redirect to :4140").count(), 1, "{ruleset}");
    }
}

#[test]
fn rules_of_a_running_pod_are_unchanged_after_ipv6_is_set_to_auto() {
    for mode in ["native", "nft"] {
        let node = meshed(mode);
        let mut entry = entry("auto");
        entry["linkerd"]["ipv6"] = json!("auto");
        node.chain(&entry);
        let before = node.ruleset();
        let controller = node.auditing(&[]);
        controller.until_metric_reaches("audit_pods_complete_total", 2);
        assert_eq!(controller.metric("audit_pods_drifted"), 1);
        assert_eq!(node.ruleset(), before);
    }
}

#[test]
fn missing_ipv6_rules_of_a_pod_that_started_with_them_are_repaired() {
    let node = meshed("native");
    let mut entry = entry("auto");
    entry["linkerd"]["ipv6"] = json!("auto");
    node.chain(&entry);
    node.namespaces.run("nft", &["flush", "ruleset"]);
    let controller = node.repaired();
    let whole = node.ruleset();
    assert!(whole.contains("table ip6 linkerd-cni"), "{whole}");
    drop(controller);
    node.namespaces.run("nft", &["delete", "table", "ip6", "linkerd-cni"]);
    let _controller = node.repaired();
    assert_eq!(node.ruleset(), whole);
}

#[test]
fn iptables_legacy_rules_are_reported_and_not_changed() {
    let node = meshed("legacy");
    let before = node.namespaces.nat("iptables-legacy");
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audit_pods_unreadable_total", 2);
    controller.until_logged("their network namespaces have a table of iptables-legacy");
    assert_eq!(node.namespaces.nat("iptables-legacy"), before);
    assert_eq!(node.ruleset(), "");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
}

#[test]
fn netns_with_too_many_rules_is_reported_and_needs_little_memory() {
    let node = meshed("native");
    // These rules need about 30 MB in the response of the kernel.
    let comment = "x".repeat(100);
    let fill = format!(
        "seq 1 120000 | sed 's/.*/add rule ip linkerd-cni OUTPUT return comment \"{comment}\"/' | nft -f -"
    );
    node.namespaces.sh(&fill);
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audit_pods_unreadable_total", 2);
    controller.until_logged("or too many rules, which the repair controller cannot read");
    assert_eq!(controller.metric("audit_pods_incomplete_total"), 0);
    assert_eq!(controller.metric("audit_pods_complete_total"), 0);
    let peak = controller.status("VmHWM:");
    assert!(peak < 40_000, "{peak} kB");
}

#[test]
fn netns_with_too_many_addresses_is_reported() {
    let node = meshed("native");
    // Use IPv4. The kernel takes ten times as long to add IPv6 addresses, which is a minute on a
    // busy machine.
    let fill = r#"seq 0 4999 |
        awk '{printf "addr add 10.200.%d.%d/32 dev eth0\n", $1 / 250, $1 % 250 + 1}' | ip -batch -"#;
    node.namespaces.sh(fill);
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audit_errors_total", 2);
    controller.until_logged("too many addresses");
    assert_eq!(controller.metric("audit_pods_complete_total"), 0);
}

#[test]
fn audit_in_mode_delete_evicts_a_pod_with_its_own_grace_period() {
    let node = Node::with(&running());
    node.api.state().evict = Answer::Status(201);
    let controller = node.auditing(&["--mode=delete"]);
    controller.until_metric_is("pods_deleted_total", 1);
    let eviction = &node.api.received(|request| request.is_eviction())[0].body;
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"preconditions": preconditions});
    assert_eq!(eviction["deleteOptions"], options);
}

#[test]
fn audit_reports_a_pod_without_a_controller_only_if_rules_are_missing() {
    let mut unowned = running();
    unowned["metadata"]["ownerReferences"] = json!([]);
    let node = Node::with(&unowned);
    node.api.state().evict = Answer::Status(201);
    let controller = node.auditing(&["--mode=delete"]);
    controller.until_metric_is("pods_skipped_total", 1);
    until("the Event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");
    drop(controller);
    drop(node.repaired());
    let controller = node.auditing(&["--mode=delete"]);
    controller.until_metric_reaches("audit_pods_complete_total", 2);
    assert_eq!(controller.metric("pods_skipped_total"), 0);
    assert_eq!(controller.metric("pods_deleted_total"), 0);
}

/// Linkerd's value `proxy.gid` sets such a group in the pods of the control plane. The plugin does
/// not exempt a group that only the container states, so the audit must not expect a rule for it.
#[test]
fn audit_expects_no_rule_for_the_group_of_the_proxy_container() {
    let node = meshed("native");
    let mut pod = running();
    pod["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    pod["spec"]["containers"][1]["securityContext"] = json!({"runAsGroup": 2103});
    node.knows(&pod);
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audits_total", 2);
    assert_eq!(controller.metric("audit_pods_incomplete_total"), 0);
    assert!(controller.metric("audit_pods_complete_total") > 0);
}

/// After a reboot, a pod whose app container was created but not started has no rules, and the
/// kubelet does not run its validator again. Only an audit finds it.
#[test]
fn mode_in_place_audits_after_its_start_until_no_pod_lacks_rules() {
    let node = Node::with(&running());
    let began = Instant::now();
    let controller = node.controller(&[]);
    until_within(140 * SECOND, "the pod is repaired", || {
        controller.metric("pods_repaired_total") == 1
    });
    assert!(began.elapsed() > 59 * SECOND, "{:?}", began.elapsed());
    assert!(node.ruleset().contains("redirect to :4140"), "{}", node.ruleset());
    assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");
    // A second audit checks whether the pod needs another repair. It finds nothing, so it is the
    // last one.
    until_within(200 * SECOND, "a second audit", || controller.metric("audits_total") == 2);
    assert_eq!(controller.metric("audit_pods_complete_total"), 1);
}

/// `iptables` and `ip6tables` of a host can be of different variants.
#[test]
fn audit_does_not_change_a_pod_with_one_family_in_a_legacy_table() {
    for (base, repair) in [
        ("iptables", "--mode=delete"),
        ("ip6tables", "--mode=delete"),
        ("iptables", "--mode=in-place"),
        ("ip6tables", "--mode=in-place"),
    ] {
        let node = Node::with(&running());
        node.api.state().evict = Answer::Status(201);
        let spec = RuleSpec { redirect: redirect("nft", "9999"), families: Family::ALL };
        let apply = move || firewall::apply(&spec, &[Backend::Nft]);
        netns::run(&node.namespaces.path(), 20 * SECOND, apply).unwrap().unwrap();
        node.namespaces.sh(&format!(
            "{base}-nft-save -t nat | {base}-legacy-restore && \
             {base}-nft -t nat -F && {base}-nft -t nat -X"
        ));
        let before = node.ruleset();
        let controller = node.controller(&["--audit-seconds=1", repair]);
        controller.until_metric_reaches("audits_total", 3);
        assert!(controller.metric("audit_pods_unreadable_total") >= 3, "{base} {repair}");
        assert_eq!(controller.metric("audit_pods_incomplete_total"), 0, "{base} {repair}");
        assert!(node.changes().is_empty(), "{base} {repair}: {:?}", node.changes());
        assert_eq!(node.ruleset(), before, "{base} {repair}");
    }
}
