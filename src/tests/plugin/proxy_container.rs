//! Tests that the plugin reads the containers of a pod: the user and listen addresses of the proxy,
//! and the users of the app.

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table;

use super::injected::injector_annotations;
use super::namespaces::{NEIGHBOUR, POD};
use super::record_socket::run_and_record;
use super::{POD_PATH, Scene, start_listeners};

/// Returns a spec with the container `app` and this proxy container.
fn with_proxy(mut proxy: Value) -> Value {
    proxy["name"] = json!("linkerd-proxy");
    json!({"containers": [{"name": "app"}, proxy]})
}

const TABLES: &str = include_str!("proxy_container.yaml");

/// A row of `exempt` in `proxy_container.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExemptRow {
    /// Security context of the pod.
    #[serde(default)]
    pod: Value,
    #[serde(default = "empty_object")]
    proxy: Value,
    #[serde(default = "empty_object")]
    annotations: Value,
    uid: u32,
}

/// A row of `sandboxes` in `proxy_container.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SandboxRow {
    class: String,
    sandboxed_classes: Option<Vec<String>>,
    #[serde(default)]
    init_containers: Value,
    starts: bool,
}

/// A row of `ipv6` in `proxy_container.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ipv6Row {
    env: Value,
    ipv6: Value,
    is_redirected: bool,
}

fn empty_object() -> Value {
    json!({})
}

/// Creates a scene with listeners, and a pod with this spec and these annotations.
fn scene(spec: &Value, annotations: Value) -> Scene {
    let scene = Scene::with_pod(annotations, spec, &json!({}));
    start_listeners(&scene);
    scene
}

#[test]
fn only_the_uid_of_the_proxy_container_is_exempt() {
    for (name, row) in table::rows_of::<ExemptRow>(TABLES, "exempt") {
        let mut spec = with_proxy(row.proxy);
        spec["securityContext"] = row.pod;
        let scene = scene(&spec, row.annotations);
        scene.add().run().succeeded();
        for uid in [2102, 3000, 4000, 5000] {
            let wanted = if uid == row.uid { "server" } else { "outbound" };
            assert_eq!(scene.outbound(uid, NEIGHBOUR[0], 9000), wanted, "{name}: user {uid}");
        }
    }
}

#[test]
fn app_container_with_the_proxys_uid_is_recorded_and_refused_in_strict_mode() {
    let proxy = json!({"runAsUser": 2102});
    let fixed = json!({"runAsUser": 1000, "allowPrivilegeEscalation": false});
    for (name, (app, init, wanted)) in table::named([
        ("the app", (proxy.clone(), json!({}), &["app"][..])),
        // This is the documented way to give an init container network access.
        ("an init container", (fixed, proxy, &[])),
    ]) {
        let mut spec = with_proxy(json!({"securityContext": {"runAsUser": 2102}}));
        spec["containers"][0]["securityContext"] = app;
        spec["initContainers"] = json!([{"name": "early", "securityContext": init}]);
        for strict in [false, true] {
            let scene = scene(&spec, json!({}));
            let (outcome, record) =
                run_and_record(&scene.add().linkerd("strict-proxy-user", strict));
            if strict && !wanted.is_empty() {
                outcome.failed(111, wanted[0]).advises("runAsUser");
                assert_eq!(scene.rules(), "", "{name}");
                assert_eq!(record["error"]["code"], 111, "{name}");
                continue;
            }
            outcome.succeeded();
            assert_eq!(record["exempt_containers"], json!(wanted), "{name}");
        }
    }
}

/// The error names the reasons as `linkerd cni bypass` does.
#[test]
fn strict_proxy_user_refuses_containers_that_may_run_as_the_proxy_user() {
    for (name, (app, wanted)) in table::named([
        ("a fixed user", (json!({"runAsUser": 1, "allowPrivilegeEscalation": false}), None)),
        (
            "a user of the image",
            (json!({"allowPrivilegeEscalation": false}), Some("(image-user: app)")),
        ),
        ("a set-user-ID file", (json!({"runAsUser": 1}), Some("(set-user-id: app)"))),
        ("neither", (json!({}), Some("(image-user: app; set-user-id: app)"))),
        (
            "root",
            (
                json!({"runAsUser": 0, "allowPrivilegeEscalation": false}),
                Some("(root-container: app)"),
            ),
        ),
    ]) {
        let mut spec = with_proxy(json!({}));
        spec["containers"][0]["securityContext"] = app;
        let scene = scene(&spec, json!({}));
        let outcome = scene.add().linkerd("strict-proxy-user", true).run();
        match wanted {
            Some(wanted) => {
                outcome.failed(111, wanted).advises("allowPrivilegeEscalation");
                assert_eq!(scene.rules(), "", "{name}");
            }
            None => {
                outcome.succeeded();
            }
        }
    }
}

/// During an API outage only the annotations are known, and they do not contain the users.
#[test]
fn strict_proxy_user_refuses_an_injected_pod_even_during_an_api_outage() {
    let marked = injector_annotations(&json!({}));
    let mut spec = with_proxy(json!({}));
    spec["containers"][0]["securityContext"] = json!({"runAsUser": 2102});
    let scene = scene(&spec, marked.clone());
    let add = scene.add().annotated(marked).linkerd("api-retry-seconds", 1);
    let strict = add.linkerd("strict-proxy-user", true);
    strict.run().failed(111, "");
    scene.api.answer(POD_PATH, 500, "{}");
    strict.run().failed(104, "");
    assert_eq!(scene.rules(), "");
    let lenient = strict.linkerd("strict-proxy-user", false);
    lenient.run().succeeded().logs("the plugin used only the annotations and the plugin entry");
}

#[test]
fn sandboxed_pod_is_refused_unless_it_has_linkerd_init() {
    for (name, row) in table::rows_of::<SandboxRow>(TABLES, "sandboxes") {
        let mut spec = with_proxy(json!({}));
        spec["runtimeClassName"] = json!(row.class);
        spec["initContainers"] = row.init_containers;
        let scene = scene(&spec, json!({}));
        let mut add = scene.add();
        if let Some(classes) = row.sandboxed_classes {
            add = add.linkerd("sandboxed-runtime-classes", classes);
        }
        let outcome = add.run();
        if row.starts {
            outcome.succeeded();
        } else {
            let ignores = format!("RuntimeClass {} ignore", row.class);
            outcome.failed(112, &ignores).advises("linkerd-init");
            assert_eq!(scene.rules(), "", "{name}");
        }
    }
}

#[test]
fn ipv6_auto_redirects_ipv6_unless_the_proxy_listens_on_ipv4_only() {
    for (name, row) in table::rows_of::<Ipv6Row>(TABLES, "ipv6") {
        let scene = scene(&with_proxy(json!({"env": row.env})), json!({}));
        let call = |command| scene.call(command).linkerd("ipv6", row.ipv6.clone());
        let previous = json!({"cniVersion": "1.0.0", "ips": [{"address": "fd99::1/64"}]});
        let (outcome, record) = run_and_record(&call("ADD").set("prevResult", previous));
        outcome.succeeded();
        assert_eq!(record["ipv6_bypasses_proxy"] == true, !row.is_redirected, "{name}: {record}");
        for (index, (pod, neighbour)) in POD.into_iter().zip(NEIGHBOUR).enumerate() {
            let is_redirected = row.is_redirected || index == 0;
            let wanted = if is_redirected { ["inbound", "outbound"] } else { ["app", "server"] };
            let got = [scene.inbound(pod, 8080), scene.outbound(1000, neighbour, 9000)];
            assert_eq!(got, wanted, "{name}: {pod}");
        }
        call("CHECK").run().succeeded();
    }
}
