//! Tests ADD, CHECK and audits on hosts whose `iptables` and `ip6tables` are of different variants.
//! Debian has separate alternatives for the two, and a host may lack some programs. The tests read
//! the installed rules with the crate `iptables`, to be independent of the project's own code.

use std::os::unix::fs::symlink;
use std::time::Duration;

use iptables::IPTables;
use linkerd2_cni::firewall::{self, RulesState};
use linkerd2_cni::netns;
use linkerd2_cni::redirect::Family;
use linkerd2_cni::redirect::rules::NAT_TABLE;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::call::Outcome;
use testkit::child::copy_program;
use testkit::properties::difference::difference;
use testkit::properties::evaluator::Rules;

use super::record_socket::run_and_record;
use super::{MESHED, Scene, UID, run_in_parallel};

/// Arguments with which upstream's plugin calls iptables for a pod with a proxy GID and with
/// skipped ports and subnets.
const UPSTREAM_COMMANDS: &str = include_str!("upstream_commands.txt");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Nft,
    Legacy,
}

const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The iptables programs of a host.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// Variants of the programs `iptables` and `ip6tables`.
    plain: [Variant; 2],
    /// The host lacks the program of this family and variant, and its `-restore` program.
    lacks: Option<(Family, Variant)>,
}

impl Host {
    fn all() -> Vec<Host> {
        let mut hosts = Vec::new();
        for ipv4 in VARIANTS {
            for ipv6 in VARIANTS {
                let plain = [ipv4, ipv6];
                hosts.push(Host { plain, lacks: None });
                for family in FAMILIES {
                    for variant in VARIANTS {
                        hosts.push(Host { plain, lacks: Some((family, variant)) });
                    }
                }
            }
        }
        hosts
    }

    /// Creates a directory with the programs. Debian has one executable for all programs of a
    /// variant. Its behaviour depends on the name by which it is called.
    fn create_programs(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for variant in VARIANTS {
            let file = multi_program(variant);
            copy_program(format!("/usr/sbin/{file}"), dir.path().join(file));
        }
        let install = |name: &str, variant| {
            for suffix in ["", "-restore"] {
                let link = dir.path().join(format!("{name}{suffix}"));
                symlink(multi_program(variant), link).unwrap();
            }
        };
        for family in FAMILIES {
            install(plain_name(family), *select_family(&self.plain, family));
            for variant in VARIANTS {
                if self.lacks != Some((family, variant)) {
                    install(program_name(family, variant), variant);
                }
            }
        }
        dir
    }

    /// Returns the variant that ADD uses for a family: the one of the mode, or the first of nft,
    /// plain and legacy if the host lacks that one.
    fn variant(&self, mode: &str, family: Family) -> Variant {
        let plain = *select_family(&self.plain, family);
        let is_missing = |variant| self.lacks == Some((family, variant));
        match mode {
            "nft" if is_missing(Variant::Nft) => plain,
            "nft" => Variant::Nft,
            "legacy" if is_missing(Variant::Legacy) => Variant::Nft,
            "legacy" => Variant::Legacy,
            _ => plain,
        }
    }
}

/// Returns the element of a pair that belongs to the family: the first for IPv4, the second for
/// IPv6.
fn select_family<T>(pair: &[T; 2], family: Family) -> &T {
    match family {
        Family::Ipv4 => &pair[0],
        Family::Ipv6 => &pair[1],
    }
}

fn multi_program(variant: Variant) -> &'static str {
    match variant {
        Variant::Nft => "xtables-nft-multi",
        Variant::Legacy => "xtables-legacy-multi",
    }
}

fn plain_name(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

fn program_name(family: Family, variant: Variant) -> &'static str {
    match (family, variant) {
        (Family::Ipv4, Variant::Nft) => "iptables-nft",
        (Family::Ipv4, Variant::Legacy) => "iptables-legacy",
        (Family::Ipv6, Variant::Nft) => "ip6tables-nft",
        (Family::Ipv6, Variant::Legacy) => "ip6tables-legacy",
    }
}

/// Returns the crate `iptables`, set up to call the program of this family and variant.
fn iptables_crate(family: Family, variant: Variant) -> IPTables {
    let cmd = program_name(family, variant);
    IPTables { cmd, has_check: true, has_wait: true, is_numeric: false }
}

/// Runs `work` in the pod's netns.
fn run_in_netns<T: Send + 'static>(scene: &Scene, work: impl FnOnce() -> T + Send + 'static) -> T {
    netns::run(&scene.path(), Duration::from_secs(60), work).unwrap()
}

/// Returns the lines that a variant lists for table `nat` in the pod's netns.
fn list_nat_table(scene: &Scene, family: Family, variant: Variant) -> Vec<String> {
    run_in_netns(scene, move || iptables_crate(family, variant).list_table(NAT_TABLE).unwrap())
}

/// Returns the rules of upstream's plugin. Adds each of them with a call of the crate.
fn upstream_rules(family: Family) -> Rules {
    let scene = Scene::meshed();
    run_in_netns(&scene, move || {
        let iptables = iptables_crate(family, Variant::Nft);
        for command in UPSTREAM_COMMANDS.lines() {
            if let Some(chain) = command.strip_prefix("-N ") {
                iptables.new_chain(NAT_TABLE, chain).unwrap();
                continue;
            }
            let (chain, rule) = command.strip_prefix("-A ").unwrap().split_once(' ').unwrap();
            // The subnet 10.0.0.0/8 gets no IPv6 rule.
            if family == Family::Ipv4 || !rule.contains("10.0.0.0/8") {
                iptables.append(NAT_TABLE, chain, rule).unwrap();
            }
        }
    });
    Rules::read(&list_nat_table(&scene, family, Variant::Nft)).unwrap()
}

#[test]
fn check_and_audit_read_each_family_from_the_table_that_add_wrote() {
    let upstream = FAMILIES.map(upstream_rules);
    let mut cases = Vec::new();
    for host in Host::all() {
        for mode in ["nft", "legacy", "plain"] {
            cases.push((host, mode, true));
            if host.lacks.is_none() {
                cases.push((host, mode, false));
            }
        }
    }
    let complete = Host { plain: VARIANTS, lacks: None };
    for mode in ["native", "auto"] {
        cases.extend([(complete, mode, true), (complete, mode, false)]);
    }
    run_in_parallel(cases, |(host, mode, ipv6)| check_host(&upstream, host, mode, ipv6));
}

/// Calls ADD, and compares the rules with upstream's. Then checks that CHECK and the audit find the
/// rules, and that CHECK fails after a rule was deleted.
fn check_host(upstream: &[Rules; 2], host: Host, mode: &str, ipv6: bool) {
    let case = format!("{host:?}, {mode}, IPv6 {ipv6}");
    let families = if ipv6 { &FAMILIES[..] } else { &FAMILIES[..1] };
    let scene = Scene::meshed();
    let programs = host.create_programs();
    let call = |command| {
        let call = scene.in_mode(mode, command).linkerd("ipv6", ipv6).linkerd("proxy-gid", 5678);
        let call = call.linkerd("subnets-to-ignore", ["10.0.0.0/8"]);
        let call = call.linkerd("outbound-ports-to-ignore", ["443", "1000-2000"]);
        call.env("PATH", programs.path()).run_without_iptables()
    };
    assert_succeeds(&call("ADD"), &format!("{case}: ADD"));
    let checked = call("CHECK");
    assert_succeeds(&checked, &format!("{case}: CHECK"));
    assert!(!checked.stderr.contains("WARN"), "{case}: {}", checked.stderr);

    let is_native = ["native", "auto"].contains(&mode);
    let in_legacy = |family: &Family| !is_native && host.variant(mode, *family) == Variant::Legacy;
    // The audit cannot read legacy tables, because it runs no programs of the host.
    let audited = run_in_netns(&scene, || firewall::rules_state(None)).unwrap();
    let wanted =
        if families.iter().any(in_legacy) { RulesState::Unreadable } else { RulesState::Complete };
    assert_eq!(audited, wanted, "{case}");

    // Listing with a legacy program creates the legacy tables of both families.
    for family in FAMILIES {
        for variant in VARIANTS {
            let listed = list_nat_table(&scene, family, variant);
            let is_writer =
                !is_native && families.contains(&family) && host.variant(mode, family) == variant;
            assert_eq!(
                listed.contains(&"-N PROXY_INIT_OUTPUT".to_owned()),
                is_writer,
                "{case}: {listed:#?}"
            );
            if is_writer {
                let rules = Rules::read(&listed).unwrap();
                assert_eq!(
                    difference(select_family(upstream, family), &rules, family),
                    None,
                    "{case}"
                );
            }
        }
    }
    assert_succeeds(&call("CHECK"), &format!("{case}: CHECK with all tables"));
    let audited = run_in_netns(&scene, || firewall::rules_state(None)).unwrap();
    assert_eq!(audited, wanted, "{case}");

    let &last = families.last().unwrap();
    if is_native {
        let table = if ipv6 { "ip6" } else { "ip" };
        let chain = ["flush", "chain", table, "linkerd-cni", "PROXY_INIT_OUTPUT"];
        scene.run("nft", &chain);
    } else {
        let program = program_name(last, host.variant(mode, last));
        scene.run(program, &["-w", "-t", "nat", "-D", "PROXY_INIT_OUTPUT", "3"]);
    }
    let (code, msg) = call("CHECK").error();
    assert!(code == 122 && msg.contains("-o lo"), "{case}, damaged: {code}, {msg}");
}

/// The chart value may change while the pod runs. The marker that names the families of the pod's
/// rules is itself in a legacy table.
#[test]
fn check_reads_legacy_rules_of_the_families_that_the_pod_started_with() {
    for ipv6_at_start in [true, false] {
        let scene = Scene::meshed();
        let call = |command, ipv6| {
            let call = scene.in_mode("legacy", command).linkerd("ipv6", ipv6);
            testkit::node_copy::publish(&call.run_dir(), ["ns", "web", UID], MESHED);
            call
        };
        call("ADD", ipv6_at_start).run().succeeded();
        for ipv6_now in [true, false] {
            let (outcome, record) = run_and_record(&call("CHECK", ipv6_now));
            outcome.succeeded();
            assert_eq!((&record["source"], &record["degraded"]), (&json!("copy"), &Value::Null));
        }
        let program = if ipv6_at_start { "ip6tables-legacy" } else { "iptables-legacy" };
        scene.run(program, &["-w", "-t", "nat", "-D", "PROXY_INIT_OUTPUT", "2"]);
        for ipv6_now in [true, false] {
            call("CHECK", ipv6_now).run().failed(122, "-o lo");
        }
    }
}

fn assert_succeeds(outcome: &Outcome, case: &str) {
    let Outcome { code, stdout, stderr } = outcome;
    assert_eq!(*code, Some(0), "{case}: {stdout} {stderr}");
}
