//! Tests CHECK with missing rules, and with foreign rules before Linkerd's rules.

use serde_json::{Value, json};

use super::record_socket::run_and_record;
use super::{MESHED, POD_PATH, Scene, UNMESHED};

/// Damages the rules of `mode` with the command for its backend.
fn damage(scene: &Scene, mode: &str, nft: &str, iptables: &str) {
    match mode {
        "native" => scene.sh(nft),
        _ => scene.sh(&format!("{} -t nat {iptables}", super::iptables_program(mode, false))),
    };
}

#[test]
fn check_names_the_missing_rules() {
    for mode in ["native", "nft", "legacy"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("CHECK").run().failed(122, "");
        call("ADD").run().succeeded();
        assert_eq!(call("CHECK").run().succeeded().stdout, "");
        let delete = "nft -a list table ip linkerd-cni | sed -n 's/.*ignore-loopback.*handle //p' | \
                      xargs nft delete rule ip linkerd-cni PROXY_INIT_OUTPUT handle";
        damage(&scene, mode, delete, "-D PROXY_INIT_OUTPUT 2");
        let outcome = call("CHECK").run();
        let (_, msg) = outcome.failed(122, "-o lo").error();
        assert!(!msg.contains("uid-owner"), "{msg}");
    }
}

/// The CNI specification requires `prevResult`, but its absence proves nothing about the rules.
#[test]
fn check_without_prev_result_fails_only_if_rules_are_missing() {
    let scene = Scene::meshed();
    let call = |command| scene.in_mode("native", command).set("prevResult", Value::Null);
    let (outcome, record) = run_and_record(&call("CHECK").annotated(json!({})));
    assert_eq!(outcome.succeeded().stdout, "");
    assert!(record["degraded"].is_null(), "{record}");
    scene.api.answer(POD_PATH, 200, UNMESHED);
    let (outcome, record) = run_and_record(&call("CHECK"));
    outcome.succeeded();
    assert!(record["degraded"].is_null(), "{record}");

    scene.api.answer(POD_PATH, 200, MESHED);
    run_and_record(&call("CHECK")).0.failed(122, "");
    call("ADD").run().succeeded();
    assert_eq!(call("CHECK").run().succeeded().stdout, "");
}

/// A process in the pod can add any number of chains.
#[test]
fn check_succeeds_with_a_warning_if_there_are_too_many_rules_to_read() {
    let scene = Scene::meshed();
    let call = |command| scene.in_mode("native", command);
    call("ADD").run().succeeded();
    let name = "x".repeat(100);
    let fill = format!(
        "(echo add table ip other; seq 1 70000 | sed 's/.*/add chain ip other {name}&/') | nft -f -"
    );
    scene.sh(&fill);
    call("CHECK").run().succeeded().logs(
        "the list of tables, chains, rules and sets in the pod's network namespace is too long to read",
    );
}

#[test]
fn check_fails_if_a_foreign_rule_precedes_linkerds_rules() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").run().succeeded();
        let insert = "nft insert rule ip linkerd-cni PROXY_INIT_OUTPUT return";
        damage(&scene, mode, insert, "-I PROXY_INIT_OUTPUT -j RETURN");
        let outcome = call("CHECK").run();
        let (_, msg) = outcome.failed(122, "PROXY_INIT_OUTPUT").error();
        assert!(!msg.contains("PROXY_INIT_REDIRECT"), "{mode}: {msg}");
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
    }
}

#[test]
fn check_compares_with_the_settings_that_the_pod_started_with() {
    for mode in ["native", "nft", "legacy", "plain"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").linkerd("outgoing-proxy-port", 5140).run().succeeded();
        let check =
            || call("CHECK").linkerd("inbound-ports-to-ignore", ["7777"]).linkerd("ipv6", true);
        assert_eq!(check().run().succeeded().stdout, "", "{mode}");
        let flush = "nft flush chain ip linkerd-cni PROXY_INIT_OUTPUT";
        damage(&scene, mode, flush, "-F PROXY_INIT_OUTPUT");
        let outcome = check().run();
        let (_, msg) = outcome.failed(122, "--to-ports 5140").error();
        assert!(!msg.contains("7777"), "{mode}: {msg}");
    }
}

/// Upstream's plugin and older versions of this plugin write no marker.
#[test]
fn check_fails_on_rules_without_a_marker_only_if_nothing_is_redirected() {
    for mode in ["native", "nft", "legacy"] {
        let scene = Scene::meshed();
        let call = |command| scene.in_mode(mode, command);
        call("ADD").run().succeeded();
        let (list, restore) = match mode {
            "native" => ("nft list ruleset", "nft -f -"),
            "nft" => ("iptables-nft-save -t nat", "iptables-nft-restore"),
            _ => ("iptables-legacy-save -t nat", "iptables-legacy-restore"),
        };
        let listed = scene.sh(&format!(
            "rules=$({list} | sed 's, linkerd-cni/1 [^\"]*,,'); nft flush ruleset; \
             echo \"$rules\" | {restore}; {list}"
        ));
        assert!(listed.contains("install-proxy-init-output\"") || mode == "nft", "{listed}");
        let check = || call("CHECK").linkerd("inbound-ports-to-ignore", ["7777"]);
        check().run().succeeded();
        damage(&scene, mode, "nft flush chain ip linkerd-cni OUTPUT", "-F OUTPUT");
        check().run().failed(122, "");
    }
}
