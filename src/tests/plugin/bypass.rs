//! Tests the paths around the proxy that `linkerd cni bypass` and the agent's metric report.
//! Connections bypass the proxy on every reported path that rules cause, and on no other path.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use linkerd2_cni::config::Config;
use linkerd2_cni::extension::examined_pod::{ExaminedPod, examine};
use linkerd2_cni::extension::release::{CalledFor, Release};
use linkerd2_cni::verdict::Verdict;
use linkerd2_cni::verdict::bypass_paths::BypassPath;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use testkit::child::copy_program;
use testkit::node_copy::FakeCluster;
use testkit::table;

use super::namespaces::{NEIGHBOUR, POD};
use super::{Scene, start_api_with_pod, start_listeners};

/// User of the container `app`.
const APP: u32 = 1000;

/// Names of the connections that the tests open.
const CONNECTIONS: [&str; 6] = ["out", "out 9001", "out IPv6", "in", "in 8081", "in IPv6"];

/// A row of `bypass.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    annotations: Map<String, Value>,
    #[serde(default)]
    namespace: Map<String, Value>,
    #[serde(default)]
    entry: Map<String, Value>,
    #[serde(default)]
    spec: Map<String, Value>,
    /// Security context of the container `app`.
    app: Option<Value>,
    /// User and group that the runtime reports for the container `app`.
    reported: Option<Value>,
    /// User that opens the outbound connections.
    #[serde(default = "app_user")]
    uid: u32,
    /// The reported paths.
    report: Vec<String>,
    /// The connections that bypass the proxy. `None`: the pod is not started.
    direct: Option<Vec<String>>,
}

fn app_user() -> u32 {
    APP
}

/// A meshed pod, its namespace and the plugin entry.
struct Pod {
    annotations: Value,
    namespace_annotations: Value,
    spec: Value,
    entry: Value,
    /// Statuses of the containers, with the users that the runtime reports.
    container_statuses: Value,
    ips: &'static [&'static str],
}

impl Pod {
    /// A pod without a path around the proxy: both address families are redirected, and the app
    /// cannot change its user and has no capabilities.
    fn without_bypass() -> Pod {
        let app = json!({
            "runAsUser": APP,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        });
        let containers = json!([
            {"name": "app", "securityContext": app},
            {"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}},
        ]);
        Pod {
            annotations: json!({}),
            namespace_annotations: json!({}),
            spec: json!({"containers": containers}),
            entry: json!({"ipv6": true}),
            container_statuses: json!([]),
            ips: &POD,
        }
    }

    /// A pod without bypass, to which the changes of a row are applied.
    fn from_row(row: &Row) -> Pod {
        let mut pod = Pod::without_bypass();
        for (changes, target) in [
            (&row.annotations, &mut pod.annotations),
            (&row.namespace, &mut pod.namespace_annotations),
            (&row.entry, &mut pod.entry),
            (&row.spec, &mut pod.spec),
        ] {
            for (key, value) in changes {
                target[key] = value.clone();
            }
        }
        if let Some(context) = &row.app {
            pod.spec["containers"][0]["securityContext"] = context.clone();
        }
        if let Some(user) = &row.reported {
            pod.container_statuses = json!([{"name": "app", "user": {"linux": user}}]);
        }
        pod
    }

    /// Starts listeners in the pod, and runs ADD unless the pod is in the host network.
    fn start(&self) -> Scene {
        let metadata = json!({"annotations": self.annotations});
        let scene =
            Scene::with_api(start_api_with_pod(metadata, &self.spec, &self.namespace_annotations));
        start_listeners(&scene);
        scene.serve_in_pod("app", 8081);
        scene.serve_in_neighbour("server", 9001);
        if self.spec["hostNetwork"] != true {
            let mut add = scene.in_mode("native", "ADD");
            for (key, value) in self.entry.as_object().unwrap() {
                add = add.linkerd(key, value.clone());
            }
            add.run().succeeded();
        }
        scene
    }

    /// Returns the reported paths as texts.
    fn report(&self) -> Vec<String> {
        let mut entry = testkit::cni::upstream_entry();
        entry["linkerd"].as_object_mut().unwrap().extend(self.entry.as_object().unwrap().clone());
        let config = Config::read(&serde_json::from_value(entry).unwrap()).unwrap();
        let release = Release { config, called_for: CalledFor::EveryPod };
        let object = json!({
            "metadata": {"name": "web", "namespace": "ns", "annotations": self.annotations},
            "spec": self.spec,
            "status": {
                "podIPs": self.ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
                "containerStatuses": self.container_statuses,
            },
        });
        let annotations = serde_json::from_value(self.namespace_annotations.clone()).unwrap();
        let mut namespace = FakeCluster { annotations, ..FakeCluster::default() };
        let pod = serde_json::from_value(object).unwrap();
        let ExaminedPod { unmeshed, verdict, paths } = examine(&release, pod, &mut namespace);
        assert_eq!(unmeshed, None);
        assert!(!matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
        paths.into_iter().map(path_text).collect()
    }
}

fn path_text(path: BypassPath) -> String {
    let cause = match path.cause {
        Some((kind, key)) => format!(", {kind} {key}"),
        None => String::new(),
    };
    format!("{}: {}{cause}", path.reason.label(), path.detail)
}

/// Opens all [`CONNECTIONS`], the outbound ones as the user `uid`. Returns the connections that
/// reach their destination directly, without the proxy.
fn open_direct_connections(scene: &Scene, uid: u32) -> Vec<&'static str> {
    let outbound = |to: &str, port| (scene.outbound(uid, to, port), "outbound", "server");
    let inbound = |to: &str, port| (scene.inbound(to, port), "inbound", "app");
    let connections = [
        outbound(NEIGHBOUR[0], 9000),
        outbound(NEIGHBOUR[0], 9001),
        outbound(NEIGHBOUR[1], 9000),
        inbound(POD[0], 8080),
        inbound(POD[0], 8081),
        inbound(POD[1], 8080),
    ];
    let mut direct = Vec::new();
    for ((reached, proxy, destination), name) in connections.into_iter().zip(CONNECTIONS) {
        assert!(reached == proxy || reached == destination, "{name}: {reached}");
        if reached == destination {
            direct.push(name);
        }
    }
    direct
}

#[test]
fn exactly_the_reported_connections_bypass_the_proxy() {
    for (name, row) in table::rows::<Row>(include_str!("bypass.yaml")) {
        let pod = Pod::from_row(&row);
        assert_eq!(pod.report(), row.report, "{name}");
        if let Some(direct) = row.direct {
            assert_eq!(open_direct_connections(&pod.start(), row.uid), direct, "{name}");
        }
    }
}

#[test]
fn connections_in_a_second_network_are_redirected() {
    let status =
        json!([{"name": "default", "ips": ["10.99.0.1"]}, {"name": "a/b", "ips": ["fd98::1"]}]);
    for (ipv6, first, report) in [
        (true, &[][..], &[][..]),
        (false, &["ipv6-link-local: , value disableIPv6"], &["ipv6: , value disableIPv6"]),
    ] {
        let entry = json!({"ipv6": ipv6});
        let mut pod = Pod { ips: &POD[..1], entry, ..Pod::without_bypass() };
        assert_eq!(pod.report(), first, "ipv6: {ipv6}");
        pod.annotations = json!({"k8s.v1.cni.cncf.io/network-status": status.to_string()});
        assert_eq!(pod.report(), report, "ipv6: {ipv6}");
        let scene = pod.start();
        scene.add_network();
        for (own, other, is_redirected) in
            [("10.98.0.1", "10.98.0.2", true), ("fd98::1", "fd98::2", ipv6)]
        {
            let wanted = if is_redirected { ["outbound", "inbound"] } else { ["server", "app"] };
            let got = [scene.outbound(APP, other, 9000), scene.inbound(own, 8080)];
            assert_eq!(got, wanted, "ipv6: {ipv6}, {own}");
        }
    }
}

/// Creates a shell that belongs to the user `uid` and has the set-user-ID bit. A script would not
/// do, because the kernel ignores the bit of scripts. The shell keeps the user if it runs with
/// `-p`.
fn create_set_user_id_shell(dir: &Path, uid: u32) -> PathBuf {
    let shell = dir.join("bash");
    copy_program("/bin/bash", &shell);
    chown(&shell, Some(uid), None).unwrap();
    // Changing the owner clears the bit, so set the mode afterwards.
    fs::set_permissions(&shell, Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    shell
}

/// Connects from the pod through a set-user-ID shell, which the app's user starts without any
/// capability.
fn connect_through_shell(scene: &Scene, shell: &Path, forbids_escalation: bool) -> String {
    let user = format!("--reuid={APP} --regid={APP} --clear-groups");
    let capabilities = "--bounding-set=-all --inh-caps=-all --ambient-caps=-all";
    let flag = if forbids_escalation { "--no-new-privs" } else { "" };
    let connect = format!("exec 3<>/dev/tcp/{}/9000 && cat <&3", NEIGHBOUR[0]);
    let shell = shell.display();
    let reply = scene
        .sh(&format!("timeout 5 setpriv {user} {capabilities} {flag} {shell} -p -c '{connect}'"));
    reply.split(' ').next().unwrap().to_owned()
}

/// Only `allowPrivilegeEscalation: false` sets `no_new_privs`.
#[test]
fn set_user_id_file_bypasses_the_proxy_unless_privilege_escalation_is_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    let shell = create_set_user_id_shell(dir.path(), 2102);
    let dropped = json!({"runAsUser": APP, "capabilities": {"drop": ["ALL"]}});
    for (allowed, report, reached) in [
        (json!(null), &["set-user-id: app"][..], "server"),
        (json!(true), &["set-user-id: app"], "server"),
        (json!(false), &[], "outbound"),
    ] {
        let mut pod = Pod::without_bypass();
        let mut context = dropped.clone();
        context["allowPrivilegeEscalation"] = allowed.clone();
        pod.spec["containers"][0]["securityContext"] = context;
        assert_eq!(pod.report(), report, "allowPrivilegeEscalation: {allowed}");
        let scene = pod.start();
        let got = connect_through_shell(&scene, &shell, allowed == json!(false));
        assert_eq!(got, reached, "allowPrivilegeEscalation: {allowed}");
        assert_eq!(scene.outbound(APP, NEIGHBOUR[0], 9000), "outbound", "without the file");
    }
}

/// The kernel gives each interface a link-local address, even if the network has no IPv6.
#[test]
fn link_local_connections_bypass_the_proxy_unless_ipv6_is_redirected() {
    for (ipv6, report) in [(false, &["ipv6-link-local: , value disableIPv6"][..]), (true, &[])] {
        let entry = json!({"ipv6": ipv6});
        let pod = Pod { ips: &POD[..1], entry, ..Pod::without_bypass() };
        assert_eq!(pod.report(), report, "ipv6: {ipv6}");
        let scene = pod.start();
        let neighbour = scene.add_link_local();
        let reached = scene.outbound(APP, &neighbour, 9000);
        assert_eq!(reached == "server", !ipv6, "ipv6: {ipv6}, {reached}");
    }
}
