//! The backend `native`, which needs no program of the host.

use std::fs;
use std::path::Path;

use super::namespaces::{NEIGHBOUR, Namespaces, POD};
use super::{Scene, listen, write_program};

/// Subnets that `nft` lists in all forms: a subnet, an address, and a range of subnets that adjoin.
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
    scene
        .in_mode("native", "ADD")
        .linkerd("ipv6", true)
        .linkerd("proxy-gid", 2103)
        .linkerd("subnets-to-ignore", SUBNETS)
        .linkerd("outbound-ports-to-ignore", ["443", "8000-8010", "442"])
        .run()
        .succeeded();
    insta::assert_snapshot!(scene.run("nft", &["list", "ruleset"]));
}

#[test]
fn a_second_add_leaves_each_native_rule_once() {
    let scene = Scene::meshed();
    let call = scene.in_mode("native", "ADD").linkerd("ipv6", true);
    call.run().succeeded();
    let once = scene.run("nft", &["list", "ruleset"]);
    call.run().succeeded();
    assert_eq!(scene.run("nft", &["list", "ruleset"]), once);
    let other = call.linkerd("incoming-proxy-port", 5143);
    other.run().succeeded();
    let changed = scene.run("nft", &["list", "ruleset"]);
    assert_eq!(changed, once.replace("4143", "5143"));
}

#[test]
fn no_connection_bypasses_the_proxy_while_the_rules_are_replaced() {
    let scene = Scene::meshed();
    listen(&scene);
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
            let got = scene.connect_from_pod(0, NEIGHBOUR[0], 9000);
            assert_eq!(got, "outbound 10.99.0.2:9000");
            connections += 1;
        }
        assert!(connections >= 10, "{connections} connections");
    });
}

#[test]
fn a_redirect_of_another_program_still_wins() {
    for program in ["iptables-nft", "iptables-legacy"] {
        let scene = Scene::meshed();
        listen(&scene);
        scene.serve_in_pod("foreign", 15001);
        let foreign = "-t nat -A PREROUTING -p tcp --dport 8081 -j REDIRECT --to-ports 15001";
        scene.run(program, &foreign.split(' ').collect::<Vec<_>>());
        scene.in_mode("auto", "ADD").run().succeeded();
        let cases = [(8080, "inbound 10.99.0.1:8080"), (8081, "foreign 10.99.0.1:8081")];
        for (port, wanted) in cases {
            let got = scene.connect_from_neighbour(POD[0], port);
            assert_eq!(got, wanted, "{program}");
        }
    }
}

#[test]
fn auto_needs_no_iptables_and_nft_names_the_missing_programs() {
    let scene = Scene::meshed();
    listen(&scene);
    let call = scene.in_mode("auto", "ADD").env("PATH", "");
    let outcome = call.run_without_iptables();
    assert_eq!(outcome.code, Some(0), "{} {}", outcome.stdout, outcome.stderr);
    let got = scene.connect_from_neighbour(POD[0], 8080);
    assert_eq!(got, "inbound 10.99.0.1:8080");

    let nft = call.linkerd("iptables-mode", "nft");
    let (code, msg) = nft.run_without_iptables().error();
    assert_eq!(code, 120);
    assert!(msg.starts_with("none of iptables-nft, iptables, iptables-legacy"), "{msg}");
}

#[test]
fn without_programs_of_the_mode_the_plugin_names_the_backend_that_wrote_the_rules() {
    let scene = Scene::meshed();
    let programs = tempfile::tempdir().unwrap();
    for name in ["iptables-nft", "iptables-nft-restore"] {
        fs::copy(Path::new("/usr/sbin").join(name), programs.path().join(name)).unwrap();
    }
    let outcome = scene
        .in_mode("legacy", "ADD")
        .env("PATH", programs.path())
        .set("log_level", "info")
        .run_without_iptables();
    assert_eq!(outcome.code, Some(0), "{} {}", outcome.stdout, outcome.stderr);
    let warning = "the node does not have both iptables-legacy and iptables-legacy-restore, using ";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(": redirected by nft, "), "{}", outcome.stderr);
}

#[test]
fn unusable_iptables_fail_add_with_a_remedy_and_check_succeeds_without_proof() {
    let scene = Scene::meshed();
    let programs = fake_iptables_nft("exit 1");
    let call = |command| scene.in_mode("nft", command).env("PATH", programs.path()).run();
    let outcome = call("ADD");
    assert_eq!(outcome.error().0, 121);
    let remedy = outcome.json()["details"].to_string();
    assert!(remedy.contains("the redirect rules could not be installed; "), "{remedy}");
    let stderr = call("CHECK").succeeded().stderr;
    let said = "without proof whether redirect rules are missing: ";
    assert!(stderr.contains(said) && stderr.contains("(code 121)"), "{stderr}");
}

#[test]
fn programs_that_succeed_without_reading_the_rules_fail_the_pod() {
    let scene = Scene::meshed();
    let programs = fake_iptables_nft("exec </dev/null; echo -P OUTPUT ACCEPT");
    let outcome = scene.in_mode("nft", "ADD").env("PATH", programs.path()).run();
    let (code, msg) = outcome.error();
    assert_eq!(code, 121, "{msg}");
    assert!(msg.ends_with("-restore reported success without reading the rules"), "{msg}");
    outcome.advises("SELinux");
}

#[test]
fn check_accepts_the_rules_of_the_mode_that_add_had() {
    for before in ["nft", "legacy", "native"] {
        let scene = Scene::meshed();
        let call = |command, mode: &str| scene.in_mode(mode, command).linkerd("ipv6", true);
        call("ADD", before).run().succeeded();
        for now in ["native", "nft", "legacy", "plain", "auto"] {
            println!("{before}, then {now}");
            call("CHECK", now).run().succeeded();
        }
        for (program, family) in [("iptables", "ip"), ("ip6tables", "ip6")] {
            match before {
                "native" => scene.run("nft", &["delete", "table", family, "linkerd-cni"]),
                _ => scene.run(&format!("{program}-{before}"), &["-t", "nat", "-F"]),
            };
        }
        for now in ["native", "nft", "legacy", "plain", "auto"] {
            let (code, msg) = call("CHECK", now).run().error();
            assert_eq!(code, 122, "{before}, then {now}: {msg}");
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
        let (code, msg) = call("CHECK").run().error();
        assert_eq!(code, 122, "{from}: {msg}");
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
    }
    // A legacy table would hide the missing rules from the repair controller.
    let legacy = scene.run("sh", &["-c", "cat /proc/net/ip*_tables_names || true"]);
    assert!(!legacy.contains("nat"), "{legacy}");
}

/// Replaces the first rule of IPv6 whose line in the listing has `from`. Not the whole table: `nft` lists the long
/// comments of the jumps, but accepts no comment above 128 characters.
fn replace_rule(namespaces: &Namespaces, from: &str, to: &str) {
    let table = namespaces.run("nft", &["--handle", "list", "table", "ip6", "linkerd-cni"]);
    let mut chain = "";
    for line in table.lines() {
        if let Some(header) = line.trim().strip_prefix("chain ") {
            chain = header.split(' ').next().unwrap();
        }
        if let Some((rule, handle)) =
            line.split_once(" # handle ").filter(|(rule, _)| rule.contains(from))
        {
            let rule = rule.trim().replacen(from, to, 1);
            // Not `replace`, by which nft 1.0.6 aborts for a rule with a set.
            let place = ["rule", "ip6", "linkerd-cni", chain, "handle", handle];
            namespaces.run("nft", &[&["insert"], &place[..], &[&rule]].concat());
            namespaces.run("nft", &[&["delete"], &place[..]].concat());
            return;
        }
    }
    panic!("no rule has {from}: {table}");
}

/// A directory with a shell script in place of `iptables-nft` and `iptables-nft-restore`.
fn fake_iptables_nft(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["iptables-nft", "iptables-nft-restore"] {
        write_program(&dir.path().join(name), script);
    }
    dir
}
