//! Tests repair mode `in-place` in real network namespaces. Needs root.

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
fn stranded_pod_gets_the_rules_that_the_plugin_would_install() {
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

    // The validator has not run again, so its status still shows the old failure. The pod has its
    // rules, so no repair is needed.
    node.api.modify(&waiting());
    controller.until_logged("Pod has all its redirect rules");
    assert_eq!(node.ruleset(), ruleset);
    // For some time, further events of this pod cause no requests.
    let requests = node.api.received(|request| !request.is_event()).len();
    node.api.modify(&waiting());
    let events = || controller.log().matches("Pod is stranded").count();
    until("the last event is read", || events() == 3);
    assert_eq!(node.api.received(|request| !request.is_event()).len(), requests);
    assert_eq!(controller.metric("pods_held_total"), 0);
}

#[test]
fn netns_of_another_pod_is_not_changed() {
    for (uid, address) in [
        // The cached result is of an earlier pod.
        ("uid-of-web-1", "10.99.0.77"),
        // The status in the API server is stale: another pod has the address now.
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
fn pod_whose_sandbox_ignores_redirect_rules_is_not_repaired() {
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
fn mirror_pod_of_a_static_pod_is_repaired_in_place() {
    for mut pod in [running(), waiting()] {
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("static-uid");
        let node = Node::new();
        // The runtime uses the UID that the kubelet assigned to the static pod.
        node.cache_cni_result("static-uid");
        node.knows(&pod);
        let _controller = node.repaired();
        assert!(node.ruleset().contains("redirect to :4140"));
    }
}

#[test]
fn pod_is_found_by_its_name_if_the_runtime_passes_no_uid() {
    let node = Node::new();
    node.cache_result_by_name("emojivoto", "web-1");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert!(node.ruleset().contains("redirect to :4140"));
}

/// Adds as many rules of another program as the controller can read. One more rule is then too
/// many, because the kernel lists the rules of all tables together.
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
        let desired = RuleSpec { redirect: redirect("native", "9999"), families: Family::IPV4 };
        let read = move || firewall::rules_state(Some(&desired));
        let state = netns::run(&node.namespaces.path(), Duration::from_secs(20), read);
        if state.unwrap().unwrap() == RulesState::Unreadable {
            let delete = format!("flush chain ip filler {chain}; delete chain ip filler {chain}");
            node.namespaces.run("nft", &[&delete]);
        }
    }
}

#[test]
fn repair_fails_if_the_installed_rules_cannot_be_read_back() {
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
fn fifo_among_the_cached_cni_results_does_not_block_a_repair() {
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

/// Creates the file on which the runtime mounts a netns, but without the mount. A container that
/// started before the netns was mounted sees only this file.
fn create_netns_file(node: &Node, name: &str, created: SystemTime) {
    let file = File::create(node.dir("var/run/netns").join(name)).unwrap();
    file.set_modified(created).unwrap();
}

#[test]
fn controller_restarts_to_repair_a_pod_whose_netns_was_mounted_later() {
    let node = Node::new();
    create_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&waiting());
    let mut controller = node.controller(&[]);
    let status = controller.until_ended();
    assert!(status.success(), "{status}");
    let log = controller.log();
    assert!(log.contains("was mounted after this container had started"), "{log}");
    assert_eq!(node.ruleset(), "");
    assert!(node.events().is_empty() && node.changes().is_empty());

    // The kubelet restarts the container. The netns is now among its mounts.
    fs::remove_file(node.dir("var/run/netns").join("later")).unwrap();
    node.name_netns(&node.namespaces, "later");
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert!(node.ruleset().contains("redirect to :4140"));
}

/// A tenant can start such pods all the time. The kubelet delays repeated restarts by up to
/// 5 minutes.
#[test]
fn controller_does_not_restart_for_a_pod_that_started_after_the_plugin_was_chained() {
    let node = Node::new();
    node.chained_at(SystemTime::now() - Duration::from_secs(60));
    create_netns_file(&node, "later", SystemTime::now());
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

/// During a rollout, the plugin of an earlier agent redirects such pods.
#[test]
fn first_audit_ignores_a_running_pod_that_started_after_the_plugin_was_chained() {
    let node = Node::new();
    node.chained_at(SystemTime::now() - Duration::from_secs(60));
    create_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&running());
    let controller = node.controller(&[]);
    until_within(Duration::from_secs(150), "an audit", || controller.metric("audits_total") == 1);
    assert_eq!(controller.metric("audit_errors_total"), 0);
    assert!(!controller.log().contains("before a restart"), "{}", controller.log());
}

#[test]
fn controller_does_not_restart_for_an_old_netns_file() {
    let node = Node::new();
    create_netns_file(&node, "old", SystemTime::now() - Duration::from_secs(60));
    node.cache_result_of("uid-of-web-1", "old");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("repair_errors_total", 1);
    controller.until_logged("no CNI result of the pod in ");
}

#[test]
fn controller_repairs_other_pods_before_it_restarts() {
    let node = Node::new();
    create_netns_file(&node, "later", SystemTime::now());
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

/// A proxy in front of the API server may respond with an object of its own.
#[test]
fn repair_is_retried_if_the_response_is_another_object_than_the_pod() {
    let node = Node::with(&waiting());
    let other = json!({"kind": "Status", "metadata": {}, "message": "no route"});
    node.api.answer(&path("web-1"), 200, &other.to_string());
    let controller = node.controller(&[]);
    controller.until_logged("unexpected response: another object instead of Pod web-1");
    node.knows(&waiting());
    controller.until_metric_is("pods_repaired_total", 1);
}

/// The validator of such a pod does not fail again, so only an audit finds the pod.
#[test]
fn controller_restarts_for_a_running_pod_that_may_have_started_before_the_plugin_was_chained() {
    let node = Node::new();
    create_netns_file(&node, "later", SystemTime::now());
    node.cache_result_of("uid-of-web-1", "later");
    node.knows(&running());
    let mut controller = node.controller(&[]);
    let log = "1 pods are not audited before a restart";
    until_within(Duration::from_secs(150), log, || controller.log().contains(log));
    assert!(controller.until_ended().success());
}

/// Returns the state of the pod's rules, compared only with their marker.
fn rules_state(node: &Node) -> RulesState {
    let read = || firewall::rules_state(None);
    netns::run(&node.namespaces.path(), Duration::from_secs(20), read).unwrap().unwrap()
}

/// A repair that is killed may have installed rules in the plugin's table without deleting those of
/// iptables.
#[test]
fn repair_that_was_interrupted_before_it_deleted_iptables_rules_is_repeated() {
    let complete = meshed("nft");
    add(&complete, "native", "9999");
    assert_eq!(rules_state(&complete), RulesState::Complete);

    let damaged = meshed("nft");
    damaged.namespaces.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    // Only the marker shows the different UID. The other comments do not contain it.
    let with_other_uid = Node::with(&running());
    let other = Redirect { proxy_uid: Some(3000), ..redirect("nft", "9999") };
    let spec = RuleSpec { redirect: other, families: Family::IPV4 };
    let apply = move || firewall::apply(&spec, &[Backend::Nft]);
    let path = with_other_uid.namespaces.path();
    netns::run(&path, Duration::from_secs(20), apply).unwrap().unwrap();
    for node in [damaged, with_other_uid] {
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
