//! What the containers of a pod state: user and listen addresses of the proxy, and users of the app.

use serde_json::{Value, json};

use super::api::Api;
use super::namespaces::{NEIGHBOUR, POD};
use super::record_socket::recorded;
use super::{POD_PATH, Scene, api_of, bracketed, listen};

/// API server with a pod that has this spec and these annotations.
fn api(spec: Value, annotations: Value) -> Api {
    api_of(json!({"annotations": annotations}), &spec, &json!({}))
}

/// A spec with the container `app` and this proxy container.
fn with_proxy(mut proxy: Value) -> Value {
    proxy["name"] = json!("linkerd-proxy");
    json!({"containers": [{"name": "app"}, proxy]})
}

fn started(api: Api) -> Scene {
    let scene = Scene::of(api);
    listen(&scene);
    scene.add().run().succeeded();
    scene
}

#[test]
fn only_the_proxys_own_uid_is_exempt_and_no_user_or_group_that_the_app_has_too() {
    let mut of_pod = with_proxy(json!({}));
    of_pod["securityContext"] = json!({"runAsUser": 3000, "runAsGroup": 3000});
    let policy = with_proxy(json!({"securityContext": {"runAsUser": 2102, "runAsGroup": 3000}}));
    let annotated = json!({"config.linkerd.io/proxy-uid": "4000"});
    let own = with_proxy(json!({"securityContext": {"runAsUser": 5000}}));
    for (spec, annotations, exempt) in [
        (of_pod.clone(), json!({}), 2102),
        (of_pod, annotated.clone(), 4000),
        (policy, json!({}), 2102),
        (own, annotated, 5000),
    ] {
        let scene = started(api(spec.clone(), annotations));
        for uid in [2102, 3000, 4000, 5000] {
            let wanted = if uid == exempt { "server" } else { "outbound" };
            let found = scene.connect_from_pod(uid, NEIGHBOUR[0], 9000);
            assert!(found.starts_with(wanted), "{spec}: user {uid}: {found}");
        }
    }
}

#[test]
fn an_app_container_with_the_proxys_user_is_recorded_and_refused_if_strict() {
    let mut spec = with_proxy(json!({"securityContext": {"runAsUser": 2102}}));
    let mut case = |pod: Value, app: Value, init: Value, gid: i64, wanted: &[&str]| {
        spec["securityContext"] = pod;
        spec["containers"][0]["securityContext"] = app;
        spec["initContainers"] = json!([{"name": "early", "securityContext": init}]);
        for strict in [false, true] {
            let scene = Scene::of(api(spec.clone(), json!({})));
            let add = scene.add().linkerd("proxy-gid", gid).linkerd("strict-proxy-user", strict);
            let (outcome, record) = recorded(&add);
            if strict && !wanted.is_empty() {
                let (code, msg) = outcome.error();
                assert_eq!(code, 111, "{msg}");
                assert!(msg.contains(wanted[0]), "{msg}");
                assert!(outcome.json()["details"].as_str().unwrap().contains("runAsUser"));
                assert_eq!(scene.rules(), "");
                assert_eq!(record["error"]["code"], 111);
                continue;
            }
            outcome.succeeded();
            let names = &record["exempt_containers"];
            assert_eq!(*names, json!(wanted), "{spec}");
        }
    };
    let none = json!({});
    let proxy = json!({"runAsUser": 2102});
    case(none.clone(), proxy.clone(), none.clone(), 0, &["app"]);
    case(proxy.clone(), none.clone(), none.clone(), 0, &["app"]);
    case(proxy.clone(), json!({"runAsUser": 1000}), none.clone(), 0, &[]);
    // The documented way to give an init container the network.
    case(none.clone(), none.clone(), proxy, 0, &[]);
    case(json!({"runAsGroup": 2103}), none.clone(), none.clone(), 2103, &["app"]);
    case(json!({"runAsGroup": 2103}), none.clone(), none, 0, &[]);
}

#[test]
fn strict_proxy_user_refuses_a_marked_pod_while_its_containers_are_known() {
    let marked = json!({
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    });
    let mut spec = with_proxy(json!({}));
    spec["containers"][0]["securityContext"] = json!({"runAsUser": 2102});
    let scene = Scene::of(api(spec, marked.clone()));
    let add = scene.add().annotated(marked).linkerd("strict-proxy-user", true);
    let (code, msg) = add.run().error();
    assert_eq!(code, 111, "{msg}");
    assert_eq!(scene.rules(), "");
    scene.api.answer(POD_PATH, 500, "{}");
    let outcome = add.run().succeeded();
    assert!(outcome.stderr.contains("annotations and plugin entry alone"), "{}", outcome.stderr);
}

#[test]
fn a_pod_whose_sandbox_ignores_the_rules_is_refused_unless_its_init_container_redirects() {
    let started = |class: &str, classes: Option<Value>, init: Value| {
        let mut spec = with_proxy(json!({}));
        spec["runtimeClassName"] = json!(class);
        spec["initContainers"] = init;
        let scene = Scene::of(api(spec, json!({})));
        let add = scene.add();
        let add = match classes {
            Some(classes) => add.linkerd("sandboxed-runtime-classes", classes),
            None => add,
        };
        let outcome = add.run();
        if outcome.json()["code"].is_null() {
            return true;
        }
        let (code, msg) = outcome.error();
        assert_eq!((code, scene.rules().as_str()), (112, ""), "{msg}");
        assert!(msg.contains(&format!("RuntimeClass {class} ignore")), "{msg}");
        assert!(outcome.json()["details"].as_str().unwrap().contains("linkerd-init"));
        false
    };
    for (class, classes, wanted) in [
        ("gvisor", None, false),
        ("runsc", None, false),
        ("kata-qemu", None, false),
        ("katalog", None, true),
        ("nvidia", None, true),
        ("", None, true),
        ("secure", Some(json!(["secure"])), false),
        ("gvisor", Some(json!(["secure"])), true),
        ("gvisor", Some(json!([])), true),
        ("gvisor", Some(json!([""])), true),
    ] {
        assert_eq!(started(class, classes, json!([])), wanted, "{class}");
    }
    assert!(started("gvisor", None, json!([{"name": "linkerd-init"}])));
}

#[test]
fn a_port_annotation_that_the_injector_ignores_is_ignored_and_recorded() {
    for value in [" 5143", "5143 ", "5143\n", "0", "70000", "x"] {
        let annotations = json!({"config.linkerd.io/inbound-port": value});
        let scene = Scene::of(api(with_proxy(json!({})), annotations));
        listen(&scene);
        let (outcome, record) = recorded(&scene.add());
        outcome.succeeded();
        let found = scene.connect_from_neighbour(POD[0], 8080);
        assert!(found.starts_with("inbound"), "{value:?}: {found}");
        let ignored = &record["ignored"][0];
        assert_eq!(ignored["elements"], json!([value]), "{ignored}");
    }
}

#[test]
fn an_id_annotation_with_a_blank_fails_the_pod_as_in_upstream() {
    for (key, value) in [("proxy-uid", " 2102"), ("proxy-uid", "2102 "), ("proxy-gid", " 2103")] {
        let annotations = json!({format!("config.linkerd.io/{key}"): value});
        let scene = Scene::of(api(with_proxy(json!({})), annotations));
        scene.add().run().failed(110, &format!("{key}: \"{value}\""));
    }
}

#[test]
fn the_last_of_two_variables_with_one_name_is_the_proxys_listen_address() {
    let address =
        |value: &str| json!({"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": value});
    let proxy = json!({"env": [address("0.0.0.0:5143"), address("0.0.0.0:4143")]});
    let scene = started(api(with_proxy(proxy), json!({})));
    let found = scene.connect_from_neighbour(POD[0], 8080);
    assert!(found.starts_with("inbound"), "{found}");
}

#[test]
fn ipv6_auto_redirects_ipv6_unless_the_proxy_is_known_to_listen_on_ipv4_only() {
    let inbound =
        |value: &str| json!({"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": value});
    let outbound =
        |value: &str| json!({"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": value});
    let dual = outbound("127.0.0.1:4140,[::1]:4140");
    let by_field =
        json!({"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "valueFrom": {"fieldRef": {}}});
    for (env, mode, is_redirected) in [
        (json!([inbound("0.0.0.0:4143"), outbound("127.0.0.1:4140")]), json!("auto"), false),
        (json!([inbound("[::]:4143"), outbound("127.0.0.1:4140")]), json!("auto"), false),
        (json!([inbound("0.0.0.0:4143"), dual]), json!("auto"), false),
        (json!([inbound("[::]:4143"), dual]), json!("auto"), true),
        (json!([]), json!("auto"), true),
        (json!([by_field, dual]), json!("auto"), true),
        (json!([inbound("[::]:4143"), by_field, dual]), json!("auto"), true),
        (json!([inbound("0.0.0.0:4143"), outbound("127.0.0.1:4140")]), json!(true), true),
    ] {
        let scene = Scene::of(api(with_proxy(json!({"env": env})), json!({})));
        listen(&scene);
        let call = |command| scene.call(command).linkerd("ipv6", mode.clone());
        let previous = json!({"cniVersion": "1.0.0", "ips": [{"address": "fd99::1/64"}]});
        let (outcome, record) = recorded(&call("ADD").set("prevResult", previous));
        outcome.succeeded();
        assert_eq!(record["ipv6_bypasses_proxy"] == true, !is_redirected, "{env}: {record}");
        for (index, address) in POD.into_iter().enumerate() {
            let is_redirected = is_redirected || index == 0;
            let wanted = if is_redirected { "inbound" } else { "app" };
            let found = scene.connect_from_neighbour(address, 8080);
            assert_eq!(found, format!("{wanted} {}:8080", bracketed(address)), "{env}");
            let wanted = if is_redirected { "outbound" } else { "server" };
            let found = scene.connect_from_pod(1000, NEIGHBOUR[index], 9000);
            assert_eq!(found, format!("{wanted} {}:9000", bracketed(NEIGHBOUR[index])), "{env}");
        }
        call("CHECK").run().succeeded();
    }
}
