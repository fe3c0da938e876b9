//! CHECK: missing rules, and foreign rules before Linkerd's.

use serde_json::{Value, json};

use super::record_socket::recorded;
use super::{MESHED, POD_PATH, Scene, UNMESHED, iptables};

#[test]
fn check_names_the_missing_rules() {
    for mode in ["native", "nft", "legacy"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122, "{msg}");
        call("ADD").run().succeeded();
        assert_eq!(call("CHECK").run().succeeded().stdout, "");
        if mode == "native" {
            let delete = "nft -a list table ip linkerd-cni | sed -n 's/.*ignore-loopback.*handle //p' | xargs nft delete rule ip linkerd-cni PROXY_INIT_OUTPUT handle";
            scene.run("sh", &["-c", delete]);
        } else {
            let program = iptables(mode, false);
            scene.run(&program, &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "2"]);
        }
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122);
        assert!(msg.contains("-o lo") && !msg.contains("uid-owner"), "{msg}");
    }
}

/// The specification demands `prevResult`, but its absence proves nothing about the rules.
#[test]
fn check_without_prev_result_skips_unmeshed_pods_and_fails_meshed_ones_only_on_proof() {
    let scene = Scene::meshed();
    let call = |command| scene.in_mode("native", command).set("prevResult", Value::Null);
    let (outcome, record) = recorded(&call("CHECK").annotated(json!({})));
    assert_eq!(outcome.succeeded().stdout, "");
    assert!(record["degraded"].is_null(), "{record}");
    scene.api.answer(POD_PATH, 200, UNMESHED);
    let (outcome, record) = recorded(&call("CHECK"));
    outcome.succeeded();
    assert!(record["degraded"].is_null(), "{record}");

    scene.api.answer(POD_PATH, 200, MESHED);
    assert_eq!(recorded(&call("CHECK")).0.error().0, 122);
    call("ADD").run().succeeded();
    let (outcome, record) = recorded(&call("CHECK"));
    assert_eq!(outcome.succeeded().stdout, "");
    assert_eq!(record["degraded"]["code"], 7, "{record}");
}

/// A process of the pod may add chains without limit.
#[test]
fn check_passes_and_says_so_if_the_lists_of_the_netns_are_too_long_to_read() {
    let scene = Scene::meshed();
    let call = |command| scene.in_mode("native", command);
    call("ADD").run().succeeded();
    let name = "x".repeat(100);
    let fill = format!(
        "(echo add table ip other; seq 1 70000 | sed 's/.*/add chain ip other {name}&/') | nft -f -"
    );
    scene.run("sh", &["-c", &fill]);
    let outcome = call("CHECK").run().succeeded();
    let warning =
        "the list of tables, chains and sets in the pod's network namespace is too long to read";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
}

#[test]
fn check_fails_if_a_foreign_rule_precedes_linkerds_rules() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").run().succeeded();
        if mode == "native" {
            let insert = "insert rule ip linkerd-cni PROXY_INIT_OUTPUT return";
            scene.run("nft", &insert.split(' ').collect::<Vec<_>>());
        } else {
            let insert = "-t nat -I PROXY_INIT_OUTPUT -j RETURN";
            scene.run(&iptables(mode, false), &insert.split(' ').collect::<Vec<_>>());
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
fn check_compares_with_the_values_that_the_pod_started_with() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").linkerd("outgoing-proxy-port", 5140).run().succeeded();
        let check = || {
            let ports = json!(["7777"]);
            call("CHECK").linkerd("inbound-ports-to-ignore", ports).linkerd("ipv6", true)
        };
        assert_eq!(check().run().succeeded().stdout, "", "{mode}");
        if mode == "native" {
            scene.run("nft", &["flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_OUTPUT"]);
        } else {
            scene.run(&iptables(mode, false), &["-t", "nat", "-F", "PROXY_INIT_OUTPUT"]);
        }
        let (code, msg) = check().run().error();
        assert_eq!(code, 122, "{mode}");
        assert!(msg.contains("--to-ports 5140") && !msg.contains("7777"), "{mode}: {msg}");
    }
}

/// Upstream's plugin and older versions of this one leave no marker.
#[test]
fn check_of_rules_without_a_marker_fails_only_if_they_redirect_no_longer() {
    for mode in ["native", "nft", "legacy"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").run().succeeded();
        let (list, restore, flush) = match mode {
            "native" => ("nft list ruleset", "nft -f -", "nft flush chain ip linkerd-cni OUTPUT"),
            "nft" => (
                "iptables-nft-save -t nat",
                "iptables-nft-restore",
                "iptables-nft -t nat -F OUTPUT",
            ),
            _ => (
                "iptables-legacy-save -t nat",
                "iptables-legacy-restore",
                "iptables-legacy -t nat -F OUTPUT",
            ),
        };
        let rewrite = format!(
            "rules=$({list} | sed 's, linkerd-cni/1 [^\"]*,,'); nft flush ruleset; \
             echo \"$rules\" | {restore}; {list}"
        );
        let listed = scene.run("sh", &["-c", &rewrite]);
        assert!(listed.contains("install-proxy-init-output\"") || mode == "nft", "{listed}");
        let check = || call("CHECK").linkerd("inbound-ports-to-ignore", ["7777"]);
        check().run().succeeded();
        scene.run("sh", &["-c", flush]);
        assert_eq!(check().run().error().0, 122, "{mode}");
    }
}

/// The rules have no marker and are not today's, and the rules of `iptables-nft`, which come first, are
/// unknown.
#[test]
fn check_passes_and_says_so_if_it_is_unknown_whether_rules_without_a_marker_redirect() {
    let scene = Scene::meshed();
    let call = |command| scene.in_mode("native", command);
    call("ADD").run().succeeded();
    let comment = "x".repeat(100);
    let fill = format!(
        "rules=$(nft list ruleset | sed 's, linkerd-cni/1 [^\"]*,,'); nft flush ruleset; \
         echo \"$rules\" | nft -f -; (echo 'add table ip nat; add chain ip nat other'; seq 1 70000 | \
         sed 's/.*/add rule ip nat other return comment \"{comment}\"/') | nft -f -"
    );
    scene.run("sh", &["-c", &fill]);
    let check = call("CHECK").linkerd("inbound-ports-to-ignore", ["7777"]);
    let outcome = check.run_without_iptables().succeeded();
    let warning =
        "the list of rules in table nat in the pod's network namespace is too long to read";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
}
