//! Repair mode `in-place`, in real network namespaces. Needs root.

use std::fs::{self, File};
use std::thread;
use std::time::{Duration, SystemTime};

use linkerd2_cni::firewall::{self, RulesState};
use linkerd2_cni::netns;
use linkerd2_cni::redirect::backend_order::Backend;
use linkerd2_cni::redirect::{Family, Redirect, RuleSpec};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use crate::namespaces::{NEIGHBOUR, POD};
use crate::node::{Node, add, meshed, redirect, running, waiting};
use crate::path;
use crate::until::{until, until_within};

#[test]
fn a_stranded_pod_gets_the_rules_that_the_plugin_would_install() {
    let node = Node::new();
    node.namespaces.serve_in_neighbour("server", 80);
    node.namespaces.serve_in_pod("proxy", 4140);
    node.namespaces.serve_in_pod("inbound", 4143);
    assert!(node.response().starts_with("server"), "{}", node.response());
    node.cache_cni_result("uid-of-web-1");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert_eq!(node.response(), format!("proxy {}:80", NEIGHBOUR[0]));
    let inbound = node.namespaces.connect_from_neighbour(POD[0], 8080);
    assert_eq!(inbound, format!("inbound {}:8080", POD[0]));
    let ruleset = node.ruleset();
    assert!(ruleset.contains("ignore-port-9999"), "{ruleset}");
    until("an event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["action"], "Repairing");
    assert!(node.api.deleted().is_empty());

    // The failure is old, the validator has not run again yet: no repair is needed.
    node.api.modify(&waiting());
    controller.until_logged("Pod has all its redirect rules");
    assert_eq!(node.ruleset(), ruleset);
    // The next failures cause no requests for a while.
    let requests = node.api.received(|request| !request.is_event()).len();
    node.api.modify(&waiting());
    let events = || controller.log().matches("Pod is stranded").count();
    until("the last event is read", || events() == 3);
    assert_eq!(node.api.received(|request| !request.is_event()).len(), requests);
    assert_eq!(controller.metric("pods_held_total"), 0);
}

#[test]
fn a_netns_that_is_not_the_pods_is_not_changed() {
    for (uid, address) in [
        // A cached result that an earlier pod left behind.
        ("uid-of-web-1", "10.99.0.77"),
        // The address belongs to another pod now, and the API server's status is stale.
        ("uid-of-web-2", POD[0]),
    ] {
        let node = Node::new();
        node.cache_cni_result(uid);
        let mut pod = waiting();
        pod["status"]["podIPs"][0]["ip"] = json!(address);
        node.knows(&pod);
        let controller = node.controller(&[]);
        controller.until_metric_is("repair_errors_total", 1);
        controller.until_logged("no CNI result of the pod in ");
        assert_eq!(node.ruleset(), "", "{uid}");
        until("an Event", || node.events().len() == 1);
        assert_eq!(node.events()[0]["action"], "Skipping");
        let note = node.events()[0]["note"].to_string();
        assert!(note.contains("its address; delete the pod to replace it"), "{note}");
    }
}

#[test]
fn a_pod_whose_sandbox_ignores_the_rules_is_not_repaired() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let mut pod = waiting();
    pod["spec"]["runtimeClassName"] = json!("kata-qemu");
    node.knows(&pod);
    let controller = node.controller(&[]);
    controller.until_metric_is("repair_errors_total", 1);
    controller.until_logged("the sandboxes of RuntimeClass kata-qemu ignore redirect rules");
    assert_eq!(node.ruleset(), "");
    assert!(node.api.deleted().is_empty());
}

#[test]
fn no_rules_are_installed_if_the_active_conflist_has_no_plugin_entry() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let list = json!({"name": "net", "plugins": [{"type": "bridge"}]});
    let first = node.dir("etc/cni/net.d").join("05-other.conflist");
    fs::write(first, list.to_string()).unwrap();
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("repair_errors_total", 1);
    controller.until_logged("05-other.conflist has no plugin entry");
    assert_eq!(node.ruleset(), "");
}

#[test]
fn the_mirror_pod_of_a_static_pod_is_repaired_in_place() {
    for mut pod in [running(), waiting()] {
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("static-uid");
        let node = Node::new();
        // The runtime knows the static pod by the UID that kubelet gave it.
        node.cache_cni_result("static-uid");
        node.knows(&pod);
        let _controller = node.repaired();
        assert!(node.ruleset().contains("redirect to :4140"));
    }
}

#[test]
fn a_pod_is_found_by_its_name_if_the_runtime_passes_no_uid() {
    let node = Node::new();
    node.cache_result_by_name("emojivoto", "web-1");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert!(node.ruleset().contains("redirect to :4140"));
}

/// Adds rules of another program, until the controller cannot read one more: the kernel lists the
/// rules of all tables together.
fn fill_listing(node: &Node) {
    let comment = "x".repeat(100);
    node.namespaces.run("nft", &["add table ip filler"]);
    for exponent in (0..15).rev() {
        let chain = format!("c{exponent}");
        node.namespaces.sh(&format!(
            "{{ echo 'add chain ip filler {chain}'; seq 1 {} | \
             sed 's/.*/add rule ip filler {chain} return comment \"{comment}\"/'; }} | nft -f -",
            1 << exponent
        ));
        let todays = RuleSpec { redirect: redirect("native", "9999"), families: Family::IPV4 };
        let read = move || firewall::rules_state(Some(&todays));
        let state = netns::run(&node.namespaces.path(), Duration::from_secs(20), read);
        if state.unwrap().unwrap() == RulesState::Unreadable {
            let delete = format!("flush chain ip filler {chain}; delete chain ip filler {chain}");
            node.namespaces.run("nft", &[&delete]);
        }
    }
}

#[test]
fn installed_rules_that_cannot_be_read_back_are_no_repair() {
    let node = Node::with(&waiting());
    fill_listing(&node);
    let controller = node.controller(&[]);
    controller.until_logged("cannot verify the installed redirect rules");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
    assert!(controller.metric("repair_errors_total") >= 1);
    until("an Event", || !node.events().is_empty());
    assert_eq!(node.events()[0]["action"], "Skipping");
}

#[test]
fn a_fifo_among_the_cached_cni_results_does_not_block_a_repair() {
    let node = Node::new();
    let fifo = node.dir("var/lib/cni/results").join("net-fifo-eth0");
    mkfifo(&fifo, Mode::S_IRUSR).unwrap();
    node.cache_cni_result("uid-of-web-1");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    until_within(Duration::from_secs(20), "the pod is repaired", || {
        controller.metric("pods_repaired_total") == 1
    });
}

/// Makes the file on which the runtime mounts a netns, as a container shows it whose mounts are
/// older than the netns.
fn make_netns_file(node: &Node, name: &str, made: SystemTime) {
    let file = File::create(node.dir("var/run/netns").join(name)).unwrap();
    file.set_modified(made).unwrap();
}

#[test]
fn the_controller_restarts_to_repair_a_pod_with_a_later_netns() {
    let node = Node::new();
    make_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&waiting());
    let mut controller = node.controller(&[]);
    let status = controller.until_ended();
    assert!(status.success(), "{status}");
    let log = controller.log();
    assert!(log.contains("was mounted after this container had started"), "{log}");
    assert_eq!(node.ruleset(), "");
    assert!(node.events().is_empty() && node.changes().is_empty());

    // The kubelet starts the container with the mounts that the node has by then.
    fs::remove_file(node.dir("var/run/netns").join("later")).unwrap();
    node.name_netns(&node.namespaces, "later");
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert!(node.ruleset().contains("redirect to :4140"));
}

/// A tenant can start such pods all the time. The kubelet waits up to 5 minutes before restarts that
/// follow each other.
#[test]
fn the_controller_runs_on_for_a_pod_that_started_by_the_plugin_and_whose_validator_fails() {
    let node = Node::new();
    node.chained_at(SystemTime::now() - Duration::from_secs(60));
    make_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    until("an Event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["action"], "Skipping");
    let note = node.events()[0]["note"].to_string();
    assert!(note.contains("restarts when it has run for 10 minutes"), "{note}");
    for _ in 0..10 {
        node.api.modify(&waiting());
    }
    thread::sleep(Duration::from_secs(2));
    assert_eq!(controller.get("/live").0, 200, "{}", controller.log());
    assert_eq!(node.events().len(), 1);
    assert!(!controller.log().contains("Restarting"), "{}", controller.log());
}

/// As the pods that an earlier agent's plugin redirected during a rollout.
#[test]
fn the_audit_after_the_start_ignores_a_running_pod_that_started_by_an_earlier_agents_plugin() {
    let node = Node::new();
    node.chained_at(SystemTime::now() - Duration::from_secs(60));
    make_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&running());
    let controller = node.controller(&[]);
    until_within(Duration::from_secs(150), "an audit", || controller.metric("audits_total") == 1);
    assert_eq!(controller.metric("audit_errors_total"), 0);
    assert!(!controller.log().contains("before a restart"), "{}", controller.log());
}

#[test]
fn a_netns_file_that_was_left_behind_does_not_end_the_controller() {
    let node = Node::new();
    make_netns_file(&node, "left", SystemTime::now() - Duration::from_secs(60));
    node.cache_result_of("uid-of-web-1", "left");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("repair_errors_total", 1);
    controller.until_logged("no CNI result of the pod in ");
}

#[test]
fn a_pod_that_can_be_repaired_is_repaired_before_the_controller_ends() {
    let node = Node::new();
    make_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-2", "later");
    node.cache_cni_result("uid-of-web-1");
    let mut later = waiting();
    later["metadata"]["name"] = json!("web-2");
    later["metadata"]["uid"] = json!("uid-of-web-2");
    node.api.answer(&path("web-1"), 200, &waiting().to_string());
    node.api.answer(&path("web-2"), 200, &later.to_string());
    node.api.state().pods = vec![later, waiting()];
    let mut controller = node.controller(&[]);
    assert!(controller.until_ended().success());
    assert!(node.ruleset().contains("redirect to :4140"), "{}", controller.log());
}

/// No validator fails in such a pod.
#[test]
fn the_controller_restarts_for_a_pod_that_may_be_older_than_the_plugin() {
    let node = Node::new();
    make_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&running());
    let mut controller = node.controller(&[]);
    let log = "1 pods are not audited before a restart";
    until_within(Duration::from_secs(150), log, || controller.log().contains(log));
    assert!(controller.until_ended().success());
}

/// Returns the state of the pod's rules, as an audit reads it without today's values.
fn rules_state(node: &Node) -> RulesState {
    let read = || firewall::rules_state(None);
    netns::run(&node.namespaces.path(), Duration::from_secs(20), read).unwrap().unwrap()
}

/// A controller that is killed in a repair may have written the plugin's rules, and not yet deleted
/// those of iptables.
#[test]
fn a_repair_that_ended_before_it_deleted_rules_of_iptables_is_repeated() {
    let complete = meshed("nft");
    add(&complete, "native", "9999");
    assert_eq!(rules_state(&complete), RulesState::Complete);

    let damaged = meshed("nft");
    damaged.namespaces.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    // The comments do not tell the UID.
    let of_other_uid = Node::with(&running());
    let other = Redirect { proxy_uid: Some(3000), ..redirect("nft", "9999") };
    let spec = RuleSpec { redirect: other, families: Family::IPV4 };
    let apply = move || firewall::apply(&spec, &[Backend::Nft]);
    let path = of_other_uid.namespaces.path();
    netns::run(&path, Duration::from_secs(20), apply).unwrap().unwrap();
    for node in [damaged, of_other_uid] {
        add(&node, "native", "9999");
        let state = rules_state(&node);
        assert!(matches!(state, RulesState::Missing(..)), "{state:?}");
        let _controller = node.repaired();
        assert_eq!(rules_state(&node), RulesState::Complete);
        let listed = node.namespaces.run("iptables-nft", &["-t", "nat", "-S"]);
        assert!(!listed.contains("REDIRECT --to"), "{listed}");
        assert!(node.ruleset().contains("skuid 2102"));
    }
}
