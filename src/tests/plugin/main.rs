//! Tests of the plugin binary: called as by a container runtime, in network namespaces, with a TLS
//! API server and with TCP connections through the rules. Needs root.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod api_address;
mod bypass;
mod check;
mod decisions;
mod failures;
mod fallback;
mod faults;
mod identity;
mod ignored;
mod injected;
mod inner_interfaces;
mod lists;
mod native;
mod node_copy;
mod protocol;
mod proxy_container;
mod record_socket;
mod rules;
mod stderr;
mod variants;

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::api::{self, Api};
use testkit::call::{Call, Outcome, UID};
use testkit::namespaces::Namespaces;
use testkit::{call, child, namespaces, until, unwritable};

const PLUGIN: &str = env!("CARGO_BIN_EXE_linkerd-cni");

const POD_PATH: &str = "/api/v1/namespaces/ns/pods/web";
const NAMESPACE_PATH: &str = "/api/v1/namespaces/ns";
const SERVICE_PATH: &str = "/api/v1/namespaces/default/services/kubernetes";
const MESHED: &str = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"app"},{"name":"linkerd-proxy"}]}}"#;
const UNMESHED: &str = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"app"}]}}"#;
const NAMESPACE: &str = r#"{"metadata":{"name":"ns"}}"#;

/// Most requests for one object in a time budget of 2 s, with pauses of 60 ms, 120 ms, 240 ms, 480
/// ms and 960 ms at least. A budget of 4 s allows one more at least. A busy machine sends fewer.
const REQUESTS_IN_2_S: u64 = 6;

/// Longest time of a call that waits for nothing. Calls usually take less than 100 ms.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Runs a call up to three times, as a busy machine may delay one. Returns the last result, and the
/// shortest time.
fn fastest<T>(mut run: impl FnMut() -> T) -> (T, Duration) {
    let mut shortest = Duration::MAX;
    for tries_left in (0..3).rev() {
        let begin = Instant::now();
        let result = run();
        shortest = shortest.min(begin.elapsed());
        if shortest < AT_ONCE || tries_left == 0 {
            return (result, shortest);
        }
    }
    unreachable!("the last try returns");
}

/// The number of API requests in a plugin record.
fn requests(record: &Value) -> u64 {
    record["requests"].as_u64().unwrap_or_default()
}

/// Writes an executable shell script.
fn write_program(path: &Path, script: &str) {
    testkit::write_program(path, format!("#!/bin/sh\n{script}\n"));
}

fn meshed_api() -> Api {
    let api = Api::start();
    api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
    api
}

/// Runs `test` for all cases, four at the same time, as they mostly wait. More would compete for
/// the processor.
fn at_the_same_time<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let mut cases = cases.into_iter().peekable();
    let test = &test;
    while cases.peek().is_some() {
        std::thread::scope(|scope| {
            for case in cases.by_ref().take(4) {
                scope.spawn(move || test(case));
            }
        });
    }
}

/// An API server with a pod that has these members of the metadata besides its name, and this spec,
/// and a namespace with these annotations.
fn api_of(mut metadata: Value, spec: &Value, of_namespace: &Value) -> Api {
    for (key, value) in [("name", "web"), ("namespace", "ns"), ("uid", UID)] {
        metadata[key] = json!(value);
    }
    let pod = json!({"metadata": metadata, "spec": spec}).to_string();
    let namespace = json!({"metadata": {"name": "ns", "annotations": of_namespace}}).to_string();
    let api = Api::start();
    api.answer(POD_PATH, 200, &pod).answer(NAMESPACE_PATH, 200, &namespace);
    api
}

/// The spec of a meshed pod.
fn meshed_spec() -> Value {
    json!({"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]})
}

/// An API server with a pod, and the pod's network namespace with a neighbour.
struct Scene {
    api: Api,
    namespaces: Namespaces,
}

impl Scene {
    fn meshed() -> Scene {
        Scene::of(meshed_api())
    }

    fn of(api: Api) -> Scene {
        Scene { api, namespaces: Namespaces::new() }
    }

    /// Creates a scene with a pod that has these annotations and this spec, and a namespace with
    /// these annotations.
    fn with(annotations: Value, spec: &Value, of_namespace: &Value) -> Scene {
        Scene::of(api_of(json!({"annotations": annotations}), spec, of_namespace))
    }

    fn call(&self, command: &str) -> Call {
        Call::new(command, &self.path(), &self.api)
    }

    fn add(&self) -> Call {
        self.call("ADD")
    }

    /// A call with `iptables-mode` set to `mode`.
    fn in_mode(&self, mode: &str, command: &str) -> Call {
        self.call(command).linkerd("iptables-mode", mode)
    }

    /// The IPv4 rules of the mode that calls have unless they set another.
    fn rules(&self) -> String {
        self.nat("iptables-nft")
    }

    /// Name of the listener that a connection from the neighbour reaches, or what happens instead.
    fn inbound(&self, to: &str, port: u16) -> String {
        listener(self.connect_from_neighbour(to, port))
    }

    /// Name of the listener that a connection from the pod as user `uid` reaches, or what happens
    /// instead.
    fn outbound(&self, uid: u32, to: &str, port: u16) -> String {
        listener(self.connect_from_pod(uid, to, port))
    }

    /// Returns whether the rules redirect outbound connections.
    fn has_rules(&self) -> bool {
        self.rules().contains("PROXY_INIT_OUTPUT")
    }
}

/// Returns a listener's reply without the address.
fn listener(reply: String) -> String {
    match reply.split_once(' ') {
        Some((name, address)) if !address.contains(' ') => name.to_owned(),
        _ => reply,
    }
}

impl Deref for Scene {
    type Target = Namespaces;

    fn deref(&self) -> &Namespaces {
        &self.namespaces
    }
}

fn iptables(mode: &str, ipv6: bool) -> String {
    let base = if ipv6 { "ip6tables" } else { "iptables" };
    match mode {
        "plain" => base.to_owned(),
        mode => format!("{base}-{mode}"),
    }
}

/// Starts listeners of proxy, admin port and app in the pod, and a server in the neighbour.
fn listen(namespaces: &Namespaces) {
    namespaces.serve_in_pod("inbound", 4143);
    namespaces.serve_in_pod("outbound", 4140);
    namespaces.serve_in_pod("admin", 4191);
    namespaces.serve_in_pod("app", 8080);
    namespaces.serve_in_neighbour("server", 9000);
}
