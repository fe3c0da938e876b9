//! `--compare`: rules as upstream's plugin makes them with the host's iptables, compared with those of this
//! plugin. Needs root.

use linkerd2_cni::repair::comparison::Report;
use testkit::chart::yaml;

use crate::controller::Controller;
use crate::namespaces::NEIGHBOUR;
use crate::node::{Node, add, running};
use crate::until::until;

/// The programs that upstream's plugin runs, by `iptablesMode`.
const PROGRAMS: [&str; 3] = ["iptables-nft", "iptables-legacy", "iptables"];

/// Upstream's commands for the pod, which skips outbound port 9999.
const COMMANDS: &str = include_str!("compare.txt");

fn run(node: &Node, program: &str, command: &str) {
    let arguments: Vec<&str> = ["-w", "-t", "nat"].into_iter().chain(command.split(' ')).collect();
    node.namespaces.run(program, &arguments);
}

fn upstream(program: &str) -> Node {
    let node = Node::with(&running());
    COMMANDS.lines().for_each(|command| run(&node, program, command));
    node
}

/// Compares the pod, and checks that this wrote nothing in its netns.
fn compared(node: &Node) -> Report {
    let rules = || {
        let tables = node.namespaces.run("cat", &["/proc/net/ip_tables_names"]);
        let legacy = match tables.contains("nat") {
            true => node.namespaces.nat("iptables-legacy"),
            false => String::new(),
        };
        node.ruleset() + &tables + &legacy
    };
    let before = rules();
    let controller = node.controller(&["--compare=/"]);
    let report = report(&controller);
    assert_eq!(rules(), before);
    assert!(node.changes().is_empty() && node.events().is_empty());
    report
}

fn report(controller: &Controller) -> Report {
    until("the comparison", || controller.get("/ready").0 == 200);
    serde_json::from_str(&controller.get("/status").1).unwrap()
}

/// Returns the differences of the pod.
fn differences(node: &Node) -> Vec<String> {
    let report = compared(node);
    assert_eq!((report.equal, report.unknown.len()), (0, 0), "{report:?}");
    report.differ["emojivoto/web-1"].clone()
}

#[test]
fn rules_of_upstreams_plugin_are_equal_in_every_mode() {
    for program in PROGRAMS {
        let report = compared(&upstream(program));
        assert_eq!(report, Report { equal: 1, ..Report::default() }, "{program}");
    }
    for mode in ["native", "nft", "legacy", "plain"] {
        let node = Node::with(&running());
        add(&node, mode, "9999");
        assert_eq!(compared(&node), Report { equal: 1, ..Report::default() }, "{mode}");
    }
}

#[test]
fn packets_that_go_elsewhere_are_named_in_every_mode() {
    let changes = yaml(include_str!("compare.yaml"));
    for program in PROGRAMS {
        for (command, wanted) in changes["elsewhere"].as_object().unwrap() {
            let node = upstream(program);
            run(&node, program, command);
            assert_eq!(differences(&node), [wanted.as_str().unwrap()], "{program} {command}");
        }
        let node = upstream(program);
        for command in COMMANDS.lines().take(3) {
            run(&node, &program.replace("ip", "ip6"), command);
        }
        let wanted = "inbound IPv6 TCP goes to the proxy's port 4143 now, and would not";
        assert_eq!(differences(&node), [wanted], "{program}");
    }
}

#[test]
fn a_pod_without_rules_or_with_those_of_other_values_differs() {
    let node = Node::with(&running());
    assert_eq!(differences(&node).len(), 2);
    add(&node, "native", "9998");
    let found = differences(&node);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("to port 9998 ") && found[1].contains("to port 9999 "), "{found:?}");
}

#[test]
fn rules_that_cannot_be_compared_are_named() {
    for program in PROGRAMS {
        let node = upstream(program);
        run(&node, program, "-I OUTPUT -m mark --mark 1 -j RETURN");
        let report = compared(&node);
        let why = &report.unknown["emojivoto/web-1"];
        assert!(why.contains("unknown option -m mark"), "{program}: {why}");
    }
    for case in yaml(include_str!("compare.yaml"))["unknown"].as_array().unwrap() {
        let [backend, damage, wanted] = [0, 1, 2].map(|index| case[index].as_str().unwrap());
        let node = Node::with(&running());
        add(&node, backend, "9999");
        node.namespaces.run("nft", &[&*damage.replace("NEIGHBOUR", NEIGHBOUR[0])]);
        let why = compared(&node).unknown["emojivoto/web-1"].clone();
        assert!(why.contains(wanted), "{backend}: {why}");
    }
    let both = upstream("iptables-nft");
    COMMANDS.lines().for_each(|command| run(&both, "iptables-legacy", command));
    let why = compared(&both).unknown["emojivoto/web-1"].clone();
    assert!(why.contains("both iptables-nft and iptables-legacy"), "{why}");
}
