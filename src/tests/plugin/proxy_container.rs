//! What the containers of a pod state: user and listen addresses of the proxy, and users of the app.

use serde_json::{Value, json};
use testkit::chart::yaml;

use super::injected::marked;
use super::namespaces::{NEIGHBOUR, POD};
use super::record_socket::recorded;
use super::{POD_PATH, Scene, listen};

/// A spec with the container `app` and this proxy container.
fn with_proxy(mut proxy: Value) -> Value {
    proxy["name"] = json!("linkerd-proxy");
    json!({"containers": [{"name": "app"}, proxy]})
}

/// The cases of a test in `proxy_container.yaml`.
fn cases(name: &str) -> Vec<Value> {
    yaml(include_str!("proxy_container.yaml"))[name].as_array().unwrap().clone()
}

/// A scene with a pod that has this spec and these annotations, and listeners.
fn scene(spec: &Value, annotations: Value) -> Scene {
    let scene = Scene::with(annotations, spec, &json!({}));
    listen(&scene);
    scene
}

#[test]
fn only_the_proxys_own_uid_is_exempt_and_no_user_or_group_that_the_app_has_too() {
    for case in cases("exempt") {
        let proxy = case.get("proxy").cloned().unwrap_or_else(|| json!({}));
        let (mut spec, exempt) = (with_proxy(proxy), case["uid"].as_u64().unwrap() as u32);
        spec["securityContext"] = case["spec"]["securityContext"].clone();
        let annotations = case.get("annotations").cloned().unwrap_or_else(|| json!({}));
        let scene = scene(&spec, annotations);
        scene.add().run().succeeded();
        for uid in [2102, 3000, 4000, 5000] {
            let wanted = if uid == exempt { "server" } else { "outbound" };
            assert_eq!(scene.outbound(uid, NEIGHBOUR[0], 9000), wanted, "{spec}: user {uid}");
        }
    }
}

#[test]
fn an_app_container_with_the_proxys_user_is_recorded_and_refused_if_strict() {
    let proxy = json!({"runAsUser": 2102});
    for (app, init, wanted) in [
        (proxy.clone(), json!({}), &["app"][..]),
        // The documented way to give an init container the network.
        (json!({}), proxy, &[]),
    ] {
        let mut spec = with_proxy(json!({"securityContext": {"runAsUser": 2102}}));
        spec["containers"][0]["securityContext"] = app;
        spec["initContainers"] = json!([{"name": "early", "securityContext": init}]);
        for strict in [false, true] {
            let scene = scene(&spec, json!({}));
            let (outcome, record) = recorded(&scene.add().linkerd("strict-proxy-user", strict));
            if strict && !wanted.is_empty() {
                outcome.failed(111, wanted[0]).advises("runAsUser");
                assert_eq!(scene.rules(), "");
                assert_eq!(record["error"]["code"], 111);
                continue;
            }
            outcome.succeeded();
            assert_eq!(record["exempt_containers"], json!(wanted), "{spec}");
        }
    }
}

#[test]
fn strict_proxy_user_refuses_a_marked_pod_while_its_containers_are_known() {
    let marked = marked(&json!({}));
    let mut spec = with_proxy(json!({}));
    spec["containers"][0]["securityContext"] = json!({"runAsUser": 2102});
    let scene = scene(&spec, marked.clone());
    let add = scene.add().annotated(marked).linkerd("strict-proxy-user", true);
    add.run().failed(111, "");
    assert_eq!(scene.rules(), "");
    scene.api.answer(POD_PATH, 500, "{}");
    add.run().succeeded().logs("annotations and plugin entry alone");
}

#[test]
fn a_pod_whose_sandbox_ignores_the_rules_is_refused_unless_its_init_container_redirects() {
    let started = |class: &str, classes: Option<Value>, init: Value| {
        let mut spec = with_proxy(json!({}));
        spec["runtimeClassName"] = json!(class);
        spec["initContainers"] = init;
        let scene = scene(&spec, json!({}));
        let add = scene.add();
        let add = match classes {
            Some(classes) => add.linkerd("sandboxed-runtime-classes", classes),
            None => add,
        };
        let outcome = add.run();
        let is_started = outcome.json()["code"].is_null();
        if !is_started {
            outcome.failed(112, &format!("RuntimeClass {class} ignore")).advises("linkerd-init");
            assert_eq!(scene.rules(), "");
        }
        is_started
    };
    for case in cases("sandboxes") {
        let classes = Some(case[1].clone()).filter(|classes| !classes.is_null());
        let is_started = started(case[0].as_str().unwrap(), classes, json!([]));
        assert_eq!(is_started, case[2], "{case}");
    }
    assert!(started("gvisor", None, json!([{"name": "linkerd-init"}])));
}

#[test]
fn ipv6_auto_redirects_ipv6_unless_the_proxy_is_known_to_listen_on_ipv4_only() {
    for case in cases("ipv6") {
        let (env, mode, is_redirected) = (&case[0], &case[1], case[2] == true);
        println!("{env}");
        let scene = scene(&with_proxy(json!({"env": env})), json!({}));
        let call = |command| scene.call(command).linkerd("ipv6", mode.clone());
        let previous = json!({"cniVersion": "1.0.0", "ips": [{"address": "fd99::1/64"}]});
        let (outcome, record) = recorded(&call("ADD").set("prevResult", previous));
        outcome.succeeded();
        assert_eq!(record["ipv6_bypasses_proxy"] == true, !is_redirected, "{record}");
        for (index, (pod, neighbour)) in POD.into_iter().zip(NEIGHBOUR).enumerate() {
            let is_redirected = is_redirected || index == 0;
            let wanted = if is_redirected { ["inbound", "outbound"] } else { ["app", "server"] };
            assert_eq!([scene.inbound(pod, 8080), scene.outbound(1000, neighbour, 9000)], wanted);
        }
        call("CHECK").run().succeeded();
    }
}
