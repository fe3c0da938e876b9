//! Repair mode `in-place` and audits, in real network namespaces. Needs root.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::cni::object::Object;
use linkerd2_cni::config::families::families;
use linkerd2_cni::config::{Config, PodFacts};
use linkerd2_cni::firewall::IptablesMode;
use linkerd2_cni::{firewall, netns};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{Answer, Api, Request};
use crate::controller::Controller;
use crate::namespaces::{NEIGHBOUR, Namespaces, POD};
use crate::until::until;
use crate::{path, stranded};

const SECOND: Duration = Duration::from_secs(1);

/// A node with one pod, `web-1`, in a netns of its own.
struct Node {
    api: Api,
    namespaces: Namespaces,
    root: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Node {
            api: Api::start(),
            namespaces: Namespaces::new(),
            root: TempDir::new().unwrap(),
        };
        let namespace = node.namespaces.path();
        let here = node.dir("var/run/netns");
        symlink(&namespace, here.join(namespace.file_name().unwrap())).unwrap();
        node.chain(&entry("auto"));
        // Invalid elements are ignored, as the plugin does.
        let annotations = json!({"config.linkerd.io/skip-outbound-ports": "http,9999,30-20"});
        let object = json!({"metadata": {"name": "emojivoto", "annotations": annotations}});
        let path = "/api/v1/namespaces/emojivoto".to_owned();
        node.api.state().objects.insert(path, object);
        node
    }

    fn dir(&self, path: &str) -> std::path::PathBuf {
        let dir = self.root.path().join(path);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Writes a conflist with this plugin entry.
    fn chain(&self, entry: &Value) {
        let plugins = json!([{"type": "bridge"}, entry]);
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
        let path = self.dir("etc/cni/net.d").join("10-net.conflist");
        fs::write(path, list.to_string()).unwrap();
    }

    /// Writes a cached CNI result that maps the pod with `uid` to the netns.
    fn cache_cni_result(&self, uid: &str) {
        let result = json!({
            "kind": "cniCacheV1",
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_UID", uid]],
            "result": {"interfaces": [{"name": "eth0", "sandbox": self.namespaces.path()}]},
        });
        let file = self.dir("var/lib/cni/results").join(format!("net-{uid}-eth0"));
        fs::write(file, result.to_string()).unwrap();
    }

    /// Adds the pod to the API server, at its path and in the list.
    fn knows(&self, pod: &Value) {
        let mut state = self.api.state();
        state.objects.insert(path("web-1"), pod.clone());
        state.pods = vec![pod.clone()];
    }

    fn controller(&self, arguments: &[&str]) -> Controller {
        let prefix = format!("--mount-prefix={}", self.root.path().display());
        let mut all = vec![&*prefix];
        all.extend(arguments);
        if !arguments.iter().any(|argument| argument.starts_with("--mode")) {
            all.push("--mode=in-place");
        }
        Controller::with(&self.api, &all)
    }

    fn ruleset(&self) -> String {
        self.namespaces.run("nft", &["list", "ruleset"])
    }

    /// Connects from the pod to a host outside and returns the response.
    fn response(&self) -> String {
        self.namespaces.connect_from_pod(0, NEIGHBOUR[0], 80)
    }

    /// Requests that delete, evict or change the pod.
    fn changes(&self) -> Vec<Request> {
        self.api.requests(|request| {
            ["DELETE", "PATCH"].contains(&&*request.method) || request.is_eviction()
        })
    }

    fn events(&self) -> Vec<Value> {
        let events = self.api.requests(|request| request.is_event());
        events.into_iter().map(|request| request.body).collect()
    }
}

fn entry(mode: &str) -> Value {
    json!({"type": "linkerd-cni", "name": "linkerd-cni", "linkerd": {
        "incoming-proxy-port": 4143,
        "outgoing-proxy-port": 4140,
        "proxy-uid": 2102,
        "iptables-mode": mode,
    }})
}

/// The pod while it runs, with its IP address.
fn running() -> Value {
    let mut pod = stranded("web-1");
    pod["spec"]["containers"] = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    pod["status"] = json!({"phase": "Running", "podIPs": [{"ip": POD[0]}]});
    pod
}

/// The pod, with its IP address, while its validator fails.
fn waiting() -> Value {
    let mut pod = running();
    pod["status"] = stranded("web-1")["status"].clone();
    pod["status"]["podIPs"] = json!([{"ip": POD[0]}]);
    pod
}

/// A node with the running pod, whose rules were installed with `iptablesMode` set to `mode`.
fn meshed(mode: &str) -> Node {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    node.knows(&running());
    add(&node, mode);
    node
}

/// Installs the pod's rules as the plugin would with `iptablesMode` set to `mode`.
fn add(node: &Node, mode: &str) {
    let entry: Object = serde_json::from_value(entry(mode)).unwrap();
    let config = Config::read(&entry).unwrap();
    let key = "config.linkerd.io/skip-outbound-ports".to_owned();
    let facts = PodFacts { annotations: [(key, "9999".to_owned())].into(), ..PodFacts::default() };
    let redirect = config.redirect(&facts).unwrap();
    let (families, mode) = (families(config.ipv6, false), config.mode);
    assert_ne!(mode, IptablesMode::Auto);
    let work = move || firewall::apply(&redirect, families, mode);
    netns::run(&node.namespaces.path(), 20 * SECOND, work).unwrap().unwrap();
}

#[test]
fn a_stranded_pod_gets_the_rules_that_the_plugin_would_install() {
    for by_address in [false, true] {
        let node = Node::new();
        node.namespaces.serve_in_neighbour("server", 80);
        node.namespaces.serve_in_pod("proxy", 4140);
        node.namespaces.serve_in_pod("inbound", 4143);
        assert!(node.response().starts_with("server"), "{}", node.response());
        if !by_address {
            node.cache_cni_result("uid-of-web-1");
        }
        node.knows(&waiting());
        let controller = node.controller(&[]);
        controller.counts("pods_repaired_total", 1);
        assert_eq!(node.response(), format!("proxy {}:80", NEIGHBOUR[0]));
        let inbound = node.namespaces.connect_from_neighbour(POD[0], 8080);
        assert_eq!(inbound, format!("inbound {}:8080", POD[0]));
        let ruleset = node.ruleset();
        assert!(ruleset.contains("ignore-port-9999"), "{ruleset}");
        until("an event", || node.events().len() == 1);
        assert_eq!(node.events()[0]["action"], "Repairing");
        assert!(node.api.deleted().is_empty());

        // The failure is old, the validator has not run again yet: no repair is needed.
        node.api.send("MODIFIED", &waiting());
        controller.logs("Pod has all its redirect rules");
        assert_eq!(node.ruleset(), ruleset);
        // The next failures cause no requests for a while.
        let requests = node.api.requests(|request| !request.is_event()).len();
        node.api.send("MODIFIED", &waiting());
        controller.logs("Ignoring pod: it had all its redirect rules");
        assert_eq!(node.api.requests(|request| !request.is_event()).len(), requests);
        assert_eq!(controller.metric("pods_held_total"), 0);
    }
}

#[test]
fn a_netns_without_the_pods_address_is_not_changed() {
    let node = Node::new();
    // A cached result that an earlier pod left behind.
    node.cache_cni_result("uid-of-web-1");
    let mut pod = waiting();
    pod["status"]["podIPs"][0]["ip"] = json!("10.99.0.77");
    node.knows(&pod);
    let controller = node.controller(&[]);
    controller.counts("repair_errors_total", 1);
    controller.logs("has the pod's address");
    assert_eq!(node.ruleset(), "");
}

#[test]
fn a_netns_that_belongs_to_another_pod_is_not_changed_although_it_has_the_pods_address() {
    let node = Node::new();
    // The address belongs to another pod now, and the API server's status is stale.
    node.cache_cni_result("uid-of-web-2");
    node.knows(&waiting());
    let controller = node.controller(&[]);
    controller.counts("repair_errors_total", 1);
    controller.logs("is in another pod's network namespace");
    assert_eq!(node.ruleset(), "");
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
    controller.counts("repair_errors_total", 1);
    controller.logs("05-other.conflist has no plugin entry");
    assert_eq!(node.ruleset(), "");
}

#[test]
fn an_audit_restores_flushed_rules_without_breaking_connections() {
    let node = meshed("native");
    let mut connection = Connection::through(&node);
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.reaches("audit_pods_complete_total", 1);
    // A pod with all its rules causes reads from the API server's cache only.
    let reads = |query: &str| {
        let path = format!("/api/v1/namespaces/emojivoto{query}");
        let reads = node.api.requests(|request| request.path == path);
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
    println!("restored after {:?}", flushed.elapsed());
    controller.counts("pods_repaired_total", 1);
    connection.exchanges_data();
    until("an event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");

    // Stranded again within a minute: the pod is held, and that is reported once.
    node.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
    until("it is held", || controller.metric("pods_held_total") >= 2);
    assert_eq!(node.ruleset(), "");
    assert_eq!(controller.metric("pods_repaired_total"), 1);
    until("a second event", || node.events().len() == 2);
    assert_eq!(node.events()[1]["action"], "Skipping");
}

#[test]
fn rules_that_no_packet_reaches_are_repaired() {
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
        let controller = node.controller(&["--audit-seconds=1"]);
        controller.counts("pods_repaired_total", 1);
        assert_eq!(node.ruleset(), whole, "{damage}");
    }
}

/// Without any rule the kernel stops tracking connections: a packet sent during that time
/// would bypass the proxy. The connection is silent until the rules are restored.
#[test]
fn a_connection_survives_the_loss_of_the_whole_table() {
    let node = meshed("native");
    let mut connection = Connection::through(&node);
    connection.exchanges_data();
    node.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.counts("pods_repaired_total", 1);
    connection.exchanges_data();
}

#[test]
fn rules_of_the_hosts_iptables_are_repaired_only_if_one_is_missing() {
    let node = meshed("nft");
    node.namespaces.serve_in_neighbour("server", 80);
    node.namespaces.serve_in_pod("proxy", 4140);
    let before = node.ruleset();
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.reaches("audit_pods_complete_total", 2);
    assert_eq!(node.ruleset(), before);

    node.namespaces.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    controller.counts("pods_repaired_total", 1);
    assert_eq!(node.response(), format!("proxy {}:80", NEIGHBOUR[0]));
    let ruleset = node.ruleset();
    assert_eq!(ruleset.matches("redirect to :4140").count(), 1, "{ruleset}");
}

#[test]
fn a_rule_before_those_of_the_hosts_iptables_that_bypasses_the_proxy_is_repaired() {
    let node = meshed("nft");
    node.namespaces.serve_in_neighbour("server", 80);
    node.namespaces.serve_in_pod("proxy", 4140);
    let insert = ["-t", "nat", "-I", "PROXY_INIT_OUTPUT", "-j", "RETURN"];
    node.namespaces.run("iptables-nft", &insert);
    assert_eq!(node.response(), format!("server {}:80", NEIGHBOUR[0]));
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.counts("pods_repaired_total", 1);
    assert_eq!(node.response(), format!("proxy {}:80", NEIGHBOUR[0]));
}

/// An older plugin version with `ipv6: auto` installed IPv4 rules only in such a pod.
#[test]
fn with_ipv6_auto_a_pod_with_ipv4_rules_only_is_repaired_once_it_has_an_ipv6_address() {
    for mode in ["native", "nft"] {
        let node = meshed(mode);
        let mut entry = entry("auto");
        entry["linkerd"]["ipv6"] = json!("auto");
        node.chain(&entry);
        node.namespaces.run("ip", &["-6", "addr", "flush", "dev", "eth0"]);
        let before = node.ruleset();
        let controller = node.controller(&["--audit-seconds=1"]);
        controller.reaches("audit_pods_complete_total", 2);
        assert_eq!(controller.metric("audit_pods_incomplete_total"), 0);
        assert_eq!(node.ruleset(), before);

        let address = format!("{}/64", POD[1]);
        node.namespaces.run("ip", &["addr", "add", &address, "dev", "eth0", "nodad"]);
        controller.counts("pods_repaired_total", 1);
        node.namespaces.serve_in_neighbour("server", 80);
        node.namespaces.serve_in_pod("proxy", 4140);
        let got = node.namespaces.connect_from_pod(0, NEIGHBOUR[1], 80);
        assert_eq!(got, format!("proxy [{}]:80", NEIGHBOUR[1]), "{mode}");
    }
}

#[test]
fn iptables_legacy_rules_are_reported_and_not_changed() {
    let node = meshed("legacy");
    let before = node.namespaces.nat("iptables-legacy");
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.reaches("audit_pods_unreadable_total", 2);
    controller.logs("cannot read iptables-legacy rules");
    assert_eq!(node.namespaces.nat("iptables-legacy"), before);
    assert_eq!(node.ruleset(), "");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
}

#[test]
fn an_audit_in_mode_delete_keeps_the_pods_grace_period() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    node.knows(&running());
    node.api.state().evict = Answer::Status(201);
    let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
    controller.counts("pods_deleted_total", 1);
    let eviction = &node.api.requests(|request| request.is_eviction())[0].body;
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"preconditions": preconditions});
    assert_eq!(eviction["deleteOptions"], options);
}

#[test]
fn an_audit_waits_for_the_disruption_budgets_after_a_deletion_that_only_a_dry_run_checked() {
    let node = Node::new();
    let names = ["web-1", "web-2"];
    for name in names {
        node.cache_cni_result(&format!("uid-of-{name}"));
        let mut pod = running();
        pod["metadata"] = stranded(name)["metadata"].clone();
        node.api.knows(&pod);
        node.api.state().pods.push(pod);
    }
    node.api.state().evict_dry_run = Some(Answer::Status(201));
    let began = Instant::now();
    let _controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
    until("both are deleted", || node.api.deleted().len() >= 2);
    assert!(began.elapsed() >= 5 * SECOND, "{:?}", began.elapsed());
    assert_eq!(node.api.deleted()[..2], names.map(path));
}

#[test]
fn an_audit_in_mode_delete_reports_a_pod_without_a_controller_only_if_rules_are_missing() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let mut bare = running();
    bare["metadata"]["ownerReferences"] = json!([]);
    node.knows(&bare);
    node.api.state().evict = Answer::Status(201);
    let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
    controller.counts("pods_skipped_total", 1);
    until("the Event", || node.events().len() == 1);
    assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");
    drop(controller);
    let repairing = node.controller(&["--audit-seconds=1"]);
    repairing.counts("pods_repaired_total", 1);
    drop(repairing);
    let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
    controller.reaches("audit_pods_complete_total", 2);
    assert_eq!(controller.metric("pods_skipped_total"), 0);
    assert_eq!(controller.metric("pods_deleted_total"), 0);
}

#[test]
fn a_failed_repair_of_an_audited_pod_causes_no_new_list() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    node.knows(&running());
    node.api.state().evict = Answer::Status(500);
    let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
    controller.reaches("pods_delete_errors_total", 1);
    // A new list for unrepaired pods begins within 5 s, after an event, and ends the watch.
    let until = Instant::now() + 8 * SECOND;
    while Instant::now() < until {
        node.api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
        thread::sleep(SECOND / 20);
    }
    assert_eq!(node.api.requests(|request| request.is_watch()).len(), 1);
}

/// Plugin entries with which the plugin installs no rules in the pod `web-1`.
fn entries_without_rules() -> [Value; 3] {
    let mut excluded = entry("auto");
    excluded["linkerd"]["exclude-namespaces"] = json!(["emojivoto"]);
    let mut agent = entry("auto");
    agent["linkerd"]["agent-namespace"] = json!("emojivoto");
    agent["linkerd"]["agent-daemonset"] = json!("web");
    let mut simulate = entry("auto");
    simulate["linkerd"]["simulate"] = json!(true);
    [excluded, agent, simulate]
}

#[test]
fn pods_that_the_plugin_skips_are_not_audited() {
    for entry in entries_without_rules() {
        let node = Node::new();
        node.chain(&entry);
        node.cache_cni_result("uid-of-web-1");
        node.knows(&running());
        node.api.state().evict = Answer::Status(201);
        let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
        controller.reaches("audits_total", 2);
        for metric in ["audit_pods_incomplete_total", "audit_errors_total"] {
            assert_eq!(controller.metric(metric), 0, "{metric} {entry}");
        }
        assert_eq!(controller.metric("pods_deleted_total"), 0, "{entry}");
    }
}

#[test]
fn a_running_pod_without_linkerd_annotations_is_not_audited() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let mut pod = running();
    pod["metadata"]["annotations"] = json!({"example.com/a": "b"});
    node.knows(&pod);
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.reaches("audits_total", 2);
    assert_eq!(controller.metric("audit_pods_incomplete_total"), 0);
    assert_eq!(node.ruleset(), "");
}

/// The pod as its author wrote it, with a proxy but without the injector's label.
fn hand_made(mut pod: Value, annotations: Value) -> Value {
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = annotations;
    pod
}

/// The plugin entry with `podDetection` set to `detection`.
fn detecting(detection: &str) -> Value {
    let mut entry = entry("auto");
    entry["linkerd"]["pod-detection"] = json!(detection);
    entry
}

#[test]
fn a_hand_made_meshed_pod_is_audited_and_repaired_like_an_injected_one() {
    let annotated = json!({"config.linkerd.io/proxy-uid": "2102"});
    for (detection, annotations) in [("annotations", annotated), ("api", json!({}))] {
        for pod in [running(), waiting()] {
            let node = Node::new();
            node.chain(&detecting(detection));
            node.cache_cni_result("uid-of-web-1");
            node.knows(&hand_made(pod, annotations.clone()));
            let controller = node.controller(&["--audit-seconds=1"]);
            controller.counts("pods_repaired_total", 1);
            assert!(node.ruleset().contains("redirect to :4140"), "{detection}");
        }
    }
}

#[test]
fn the_mirror_pod_of_a_static_pod_is_repaired_in_place() {
    for mut pod in [running(), waiting()] {
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("static-uid");
        let node = Node::new();
        // The runtime knows the static pod by the UID that kubelet gave it.
        node.cache_cni_result("static-uid");
        node.knows(&pod);
        let controller = node.controller(&["--audit-seconds=1"]);
        controller.counts("pods_repaired_total", 1);
        assert!(node.ruleset().contains("redirect to :4140"));
    }
}

#[test]
fn a_stranded_hand_made_pod_without_linkerd_annotation_is_reported_with_a_remedy() {
    for mode in ["delete", "in-place", "label", "report"] {
        let node = Node::new();
        node.chain(&detecting("annotations"));
        node.cache_cni_result("uid-of-web-1");
        node.knows(&hand_made(waiting(), json!({})));
        let controller = node.controller(&[&format!("--mode={mode}")]);
        controller.counts("pods_skipped_total", 1);
        controller.logs("set the chart's podDetection to api");
        assert!(node.changes().is_empty(), "{mode}: {:?}", node.changes());
    }
}

#[test]
fn a_stranded_pod_that_the_plugin_skips_is_reported_and_not_repaired_in_any_mode() {
    for mode in ["delete", "in-place", "label", "report"] {
        for entry in entries_without_rules() {
            let node = Node::new();
            node.chain(&entry);
            node.cache_cni_result("uid-of-web-1");
            node.knows(&waiting());
            let controller = node.controller(&[&format!("--mode={mode}")]);
            controller.counts("pods_skipped_total", 1);
            controller.logs("the plugin installs no redirect rules in this pod (");
            until("an event", || node.events().len() == 1);
            assert_eq!(node.events()[0]["action"], "Skipping", "{mode} {entry}");
            assert!(node.changes().is_empty(), "{mode} {entry}: {:?}", node.changes());
            assert_eq!(node.ruleset(), "", "{mode} {entry}");
        }
    }
}

#[test]
fn a_stranded_pod_without_proxy_or_with_linkerd_init_is_reported_and_not_repaired_in_any_mode() {
    let mut proxy_init = waiting();
    let validator = json!({"name": "linkerd-network-validator"});
    proxy_init["spec"]["initContainers"] = json!([{"name": "linkerd-init"}, validator]);
    let mut no_proxy = waiting();
    no_proxy["spec"]["containers"] = json!([{"name": "app"}]);
    for mode in ["delete", "in-place", "label", "report"] {
        for pod in [&proxy_init, &no_proxy] {
            let node = Node::new();
            node.cache_cni_result("uid-of-web-1");
            node.knows(pod);
            let controller = node.controller(&[&format!("--mode={mode}")]);
            until("an event", || node.events().len() == 1);
            let note = node.events()[0]["note"].as_str().unwrap().to_owned();
            let reason = "Pod skipped: the plugin installs no redirect rules";
            assert!(note.starts_with(reason), "{mode}: {note}");
            assert!(note.contains("linkerd-network-validator"), "{mode}: {note}");
            controller.logs(&note);
            controller.counts("pods_skipped_total", 1);
            assert!(node.changes().is_empty(), "{mode}: {:?}", node.changes());
            assert_eq!(node.ruleset(), "", "{mode}");
        }
    }
}

/// A connection from the pod to a host outside, redirected to the proxy.
struct Connection {
    app: TcpStream,
    proxy: TcpStream,
}

impl Connection {
    fn through(node: &Node) -> Self {
        let path = node.namespaces.path();
        let listen = || TcpListener::bind("0.0.0.0:4140").unwrap();
        let listener = netns::run(&path, 5 * SECOND, listen).unwrap();
        let connect = || TcpStream::connect((NEIGHBOUR[0], 80)).unwrap();
        let app = netns::run(&path, 5 * SECOND, connect).unwrap();
        let (proxy, _) = listener.accept().unwrap();
        for stream in [&app, &proxy] {
            stream.set_read_timeout(Some(50 * SECOND)).unwrap();
        }
        Connection { app, proxy }
    }

    fn exchanges_data(&mut self) {
        let mut received = [0; 4];
        self.app.write_all(b"ping").unwrap();
        self.proxy.read_exact(&mut received).unwrap();
        self.proxy.write_all(b"pong").unwrap();
        self.app.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"pong");
    }
}
