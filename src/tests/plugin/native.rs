//! Tests the backend `native`, which needs no program of the host.

use std::path::Path;

use testkit::child::copy_program;

use super::namespaces::{NEIGHBOUR, Namespaces, POD};
use super::{Scene, start_listeners, write_program};

/// Subnets that `nft` lists in each of its forms: as a subnet, as an address, and as a range of
/// adjoining subnets.
const SUBNETS: [&str; 8] = [
    "10.0.0.0/12",
    "192.168.1.7/32",
    "172.16.0.0/16",
    "172.17.0.0/16",
    "172.18.0.0/16",
    "10.1.0.0/16",
    "fd00::/8",
    "192.0.2.0/31",
];

#[test]
fn native_rules_are_in_a_table_of_their_own() {
    let scene = Scene::meshed();
    let call = scene.in_mode("native", "ADD").linkerd("ipv6", true).linkerd("proxy-gid", 2103);
    let call = call.linkerd("subnets-to-ignore", SUBNETS);
    call.linkerd("outbound-ports-to-ignore", ["443", "8000-8010", "442"]).run().succeeded();
    insta::assert_snapshot!(scene.run("nft", &["list", "ruleset"]));
}

#[test]
fn no_connection_bypasses_the_proxy_while_the_rules_are_replaced() {
    let scene = Scene::meshed();
    start_listeners(&scene);
    let call = scene.in_mode("native", "ADD");
    call.run().succeeded();
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            for _ in 0..15 {
                call.run().succeeded();
            }
        });
        let mut connections = 0;
        while !replacing.is_finished() {
            assert_eq!(scene.outbound(0, NEIGHBOUR[0], 9000), "outbound");
            connections += 1;
        }
        assert!(connections >= 10, "{connections} connections");
    });
}

/// Adds rules of another program to table `nat`: for inbound connections, as Docker does to publish
/// a port, and for outbound connections.
fn add_foreign_rules(scene: &Scene, variant: &str) {
    for (family, base) in [(0, "iptables"), (1, "ip6tables")] {
        let program = format!("{base}-{variant} -w -t nat");
        let to =
            if family == 0 { format!("{}:15001", POD[0]) } else { format!("[{}]:15001", POD[1]) };
        scene.sh(&format!(
            "{program} -A PREROUTING -p tcp --dport 4191 -j DNAT --to-destination {to}; \
             {program} -A PREROUTING -p tcp --dport 8081 -j DNAT --to-destination {to}; \
             {program} -A OUTPUT -p tcp --dport 9000 -j REDIRECT --to-ports 15001"
        ));
    }
}

/// The kernel runs the `nat` chains of a hook in the order of their priorities. At equal priority,
/// the chain that was registered last runs first.
#[test]
fn foreign_nat_rule_runs_first_only_if_it_precedes_the_jump_of_an_iptables_backend() {
    for (mode, variant, is_older, runs_first) in [
        ("native", "nft", true, false),
        ("native", "nft", false, false),
        ("native", "legacy", true, false),
        ("native", "legacy", false, false),
        ("auto", "nft", true, false),
        ("auto", "nft", false, false),
        ("nft", "nft", true, true),
        ("nft", "nft", false, false),
        ("legacy", "legacy", true, true),
        ("legacy", "legacy", false, false),
    ] {
        let case = format!("{mode}, {variant}, foreign rules before ADD: {is_older}");
        let scene = Scene::meshed();
        start_listeners(&scene);
        scene.serve_in_pod("foreign", 15001);
        let add = || scene.in_mode(mode, "ADD").linkerd("ipv6", true).run().succeeded();
        if is_older {
            add_foreign_rules(&scene, variant);
            add();
        } else {
            add();
            add_foreign_rules(&scene, variant);
        }
        scene.in_mode(mode, "CHECK").linkerd("ipv6", true).run().succeeded();
        for family in [0, 1] {
            let pod = POD[family];
            let neighbour = NEIGHBOUR[family];
            let foreign_or = |proxy| if runs_first { "foreign" } else { proxy };
            for (name, got, wanted) in [
                ("another port", scene.inbound(pod, 8080), "inbound"),
                ("inbound", scene.inbound(pod, 8081), foreign_or("inbound")),
                ("outbound", scene.outbound(0, neighbour, 9000), foreign_or("outbound")),
                // The plugin's rules skip these connections, so the foreign rules apply.
                ("a skipped port", scene.inbound(pod, 4191), "foreign"),
                ("the proxy", scene.outbound(2102, neighbour, 9000), "foreign"),
            ] {
                assert_eq!(got, wanted, "{case}, family {family}: {name}");
            }
        }
    }
}

/// Changes the hook priority of the plugin's base chains.
fn set_hook_priority(scene: &Scene, priority: i32) {
    let listed = scene.sh(&format!(
        "rules=$(nft list ruleset | sed 's/priority -199;/priority {priority};/'); \
         nft flush ruleset; echo \"$rules\" | nft -f -; nft -y list ruleset"
    ));
    assert_eq!(listed.matches(&format!("priority {priority};")).count(), 2, "{listed}");
}

#[test]
fn check_accepts_only_the_hook_priorities_of_this_and_earlier_versions() {
    let scene = Scene::meshed();
    // Skip a single port: `nft` encodes a range differently from the plugin.
    let call =
        |command| scene.in_mode("native", command).linkerd("inbound-ports-to-ignore", ["4191"]);
    call("ADD").run().succeeded();
    set_hook_priority(&scene, -99);
    call("CHECK").run().succeeded();
    scene.sh("nft flush chain ip linkerd-cni PROXY_INIT_OUTPUT");
    call("CHECK").run().failed(122, "-o lo");
    call("ADD").run().succeeded();
    assert!(scene.sh("nft -y list ruleset").contains("priority -199;"));
    for priority in [-100, -98, 0] {
        set_hook_priority(&scene, priority);
        call("CHECK").run().failed(122, "install-proxy-init-output");
        call("ADD").run().succeeded();
    }
}

#[test]
fn auto_needs_no_iptables_and_nft_names_the_missing_programs() {
    let scene = Scene::meshed();
    start_listeners(&scene);
    let call = scene.in_mode("auto", "ADD").env("PATH", "");
    call.run_without_iptables().succeeded();
    assert_eq!(scene.inbound(POD[0], 8080), "inbound");

    let outcome = call.linkerd("iptables-mode", "nft").run_without_iptables();
    outcome.failed(120, "none of iptables-nft, iptables, iptables-legacy");
}

#[test]
fn add_names_the_backend_that_replaced_a_missing_one() {
    let scene = Scene::meshed();
    let programs = tempfile::tempdir().unwrap();
    for name in ["iptables-nft", "iptables-nft-restore"] {
        copy_program(Path::new("/usr/sbin").join(name), programs.path().join(name));
    }
    let outcome = scene
        .in_mode("legacy", "ADD")
        .env("PATH", programs.path())
        .set("log_level", "info")
        .run_without_iptables();
    let outcome = outcome.succeeded();
    outcome.logs("the node does not have both iptables-legacy and iptables-legacy-restore, using ");
    outcome.logs(": redirected by nft, ");
}

#[test]
fn add_needs_working_iptables_but_check_does_not() {
    let scene = Scene::meshed();
    let programs = create_fake_iptables_nft("exit 1");
    let call = |command| scene.in_mode("nft", command).env("PATH", programs.path()).run();
    call("ADD").failed(121, "").advises("the redirect rules could not be installed; ");
    call("CHECK").failed(122, "");
}

#[test]
fn add_fails_if_iptables_succeeds_without_reading_the_rules() {
    let scene = Scene::meshed();
    let programs = create_fake_iptables_nft("exec </dev/null; echo -P OUTPUT ACCEPT");
    let outcome = scene.in_mode("nft", "ADD").env("PATH", programs.path()).run();
    let outcome = outcome.failed(121, "-restore reported success without reading the rules");
    outcome.advises("SELinux");
}

#[test]
fn check_accepts_rules_that_add_wrote_in_another_mode() {
    for before in ["nft", "legacy", "native"] {
        let scene = Scene::meshed();
        let call = |command, mode: &str| scene.in_mode(mode, command).linkerd("ipv6", true);
        call("ADD", before).run().succeeded();
        let all = ["native", "nft", "legacy", "plain", "auto"];
        for now in all {
            println!("{before}, then {now}");
            call("CHECK", now).run().succeeded();
        }
        match before {
            "native" => scene.sh("nft flush ruleset"),
            _ => scene.sh(&format!("iptables-{before} -t nat -F; ip6tables-{before} -t nat -F")),
        };
        for now in all {
            println!("{before}, flushed, then {now}");
            call("CHECK", now).run().failed(122, "");
        }
    }
}

#[test]
fn check_fails_if_a_native_rule_was_changed() {
    let scene = Scene::meshed();
    let call = |command| {
        scene
            .in_mode("native", command)
            .linkerd("inbound-ports-to-ignore", ["4191", "80-90"])
            .linkerd("outbound-ports-to-ignore", ["8000-8010"])
            .linkerd("subnets-to-ignore", ["fd00::/16", "fd02::/16"])
            .linkerd("outbound-subnets-to-ignore", ["fd03::/16", "fd05::/16"])
            .linkerd("ipv6", true)
    };
    call("ADD").run().succeeded();
    call("CHECK").run().succeeded();
    for (from, to) in [
        ("skuid 2102", "skuid 2103"),
        ("dport 8000-8010", "dport 8000-8011"),
        ("{ 80-90, 4191 }", "{ 80-90, 4192 }"),
        ("{ 80-90, 4191 }", "{ 80-90, 4191-65535 }"),
        ("{ 80-90, 4191 }", "{ 80-90 }"),
        ("dport { 80-90, 4191 }", "dport != { 80-90, 4191 }"),
        ("fd02::/16", "fd02::/17"),
        ("fd05::/16", "fd05::/17"),
        ("daddr { fd03::/16", "saddr { fd03::/16"),
        ("redirect to :4140", "redirect to :4141"),
        ("oifname \"lo\"", "oifname \"lo0\""),
    ] {
        replace_rule(&scene, from, to);
        println!("{from}");
        call("CHECK").run().failed(122, "");
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
    }
    // CHECK must not create a legacy table, because the repair controller cannot read it.
    let legacy = scene.sh("cat /proc/net/ip*_tables_names || true");
    assert!(!legacy.contains("nat"), "{legacy}");
}

/// Replaces `from` with `to` in the first IPv6 rule whose listed line contains `from`. The whole
/// table cannot be replaced: `nft` lists the long comments of the jumps, but rejects a comment of
/// more than 128 characters as input.
fn replace_rule(namespaces: &Namespaces, from: &str, to: &str) {
    replace_rule_of_family(namespaces, "ip6", from, to);
}

/// Replaces `from` with `to` in the first rule of this family whose listed line contains `from`.
pub(super) fn replace_rule_of_family(namespaces: &Namespaces, family: &str, from: &str, to: &str) {
    let table = namespaces.run("nft", &["--handle", "list", "table", family, "linkerd-cni"]);
    let mut chain = "";
    for line in table.lines() {
        if let Some(header) = line.trim().strip_prefix("chain ") {
            chain = header.split(' ').next().unwrap();
        }
        if let Some((rule, handle)) = line.split_once(" # handle ")
            && rule.contains(from)
        {
            let rule = rule.trim().replacen(from, to, 1);
            // Insert and delete instead of `nft replace`: nft 1.0.6 aborts if the rule has a set.
            let place = ["rule", family, "linkerd-cni", chain, "handle", handle];
            namespaces.run("nft", &[&["insert"], &place[..], &[&rule]].concat());
            namespaces.run("nft", &[&["delete"], &place[..]].concat());
            return;
        }
    }
    panic!("no rule has {from}: {table}");
}

/// Creates a directory in which `iptables-nft` and `iptables-nft-restore` are this shell script.
fn create_fake_iptables_nft(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["iptables-nft", "iptables-nft-restore"] {
        write_program(&dir.path().join(name), script);
    }
    dir
}
