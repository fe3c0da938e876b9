//! Tests of the plugin binary. They call it like a container runtime does, in network namespaces,
//! with an API server over TLS, and open TCP connections through the rules. They need root.

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

/// Largest number of requests for one object within a retry budget of 2 s. The pauses between them
/// are at least 60 ms, 120 ms, 240 ms, 480 ms and 960 ms. A budget of 4 s allows at least one more
/// request. A busy machine may send fewer.
const REQUESTS_IN_2_S: u64 = 6;

/// Longest time that a call without retries may take. Calls usually take less than 100 ms.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Runs a call up to three times, because a busy machine may delay a single call. Returns the last
/// result, and the shortest time.
fn measure_fastest<T>(mut run: impl FnMut() -> T) -> (T, Duration) {
    let mut shortest = Duration::MAX;
    let mut runs = 0;
    loop {
        let started = Instant::now();
        let result = run();
        shortest = shortest.min(started.elapsed());
        runs += 1;
        if shortest < AT_ONCE || runs == 3 {
            return (result, shortest);
        }
    }
}

/// Returns the number of API requests in a plugin record.
fn request_count(record: &Value) -> u64 {
    record["requests"].as_u64().unwrap_or_default()
}

/// Writes an executable shell script.
fn write_program(path: &Path, script: &str) {
    testkit::write_program(path, format!("#!/bin/sh\n{script}\n"));
}

fn start_meshed_api() -> Api {
    let api = Api::start();
    api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
    api
}

/// Number of cases that [`run_in_parallel`] runs at once. The cases spend most of their time
/// waiting, but more than four would compete for the processor.
const CASES_AT_ONCE: usize = 4;

/// Runs `test` for all cases, [`CASES_AT_ONCE`] at a time.
fn run_in_parallel<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let mut remaining_cases = cases.into_iter().peekable();
    let test = &test;
    while remaining_cases.peek().is_some() {
        std::thread::scope(|scope| {
            for case in remaining_cases.by_ref().take(CASES_AT_ONCE) {
                scope.spawn(move || test(case));
            }
        });
    }
}

/// Starts an API server with a pod and its namespace. The pod has this metadata, in addition to
/// name, namespace and UID. The namespace has these annotations.
fn start_api_with_pod(mut metadata: Value, spec: &Value, namespace_annotations: &Value) -> Api {
    for (key, value) in [("name", "web"), ("namespace", "ns"), ("uid", UID)] {
        metadata[key] = json!(value);
    }
    let pod = json!({"metadata": metadata, "spec": spec}).to_string();
    let namespace = json!({"metadata": {"name": "ns", "annotations": namespace_annotations}});
    let namespace = namespace.to_string();
    let api = Api::start();
    api.answer(POD_PATH, 200, &pod).answer(NAMESPACE_PATH, 200, &namespace);
    api
}

/// Returns the spec of a meshed pod.
fn meshed_spec() -> Value {
    json!({"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]})
}

/// An API server with a pod, the pod's netns, and the netns of a neighbour that is connected to it.
struct Scene {
    api: Api,
    namespaces: Namespaces,
}

impl Scene {
    fn meshed() -> Scene {
        Scene::with_api(start_meshed_api())
    }

    fn with_api(api: Api) -> Scene {
        Scene { api, namespaces: Namespaces::new() }
    }

    /// Creates a scene in which the pod has these annotations and this spec.
    fn with_pod(annotations: Value, spec: &Value, namespace_annotations: &Value) -> Scene {
        Scene::with_api(start_api_with_pod(
            json!({"annotations": annotations}),
            spec,
            namespace_annotations,
        ))
    }

    fn call(&self, command: &str) -> Call {
        Call::new(command, &self.path(), &self.api)
    }

    fn add(&self) -> Call {
        self.call("ADD")
    }

    /// Returns a call whose plugin entry has `mode` as `iptables-mode`.
    fn in_mode(&self, mode: &str, command: &str) -> Call {
        self.call(command).linkerd("iptables-mode", mode)
    }

    /// Returns the IPv4 rules that calls without an explicit mode install.
    fn rules(&self) -> String {
        self.nat("iptables-nft")
    }

    /// Connects from the neighbour. Returns the name of the listener that accepts the connection,
    /// or the error.
    fn inbound(&self, to: &str, port: u16) -> String {
        listener_name(self.connect_from_neighbour(to, port))
    }

    /// Connects from the pod as the user `uid`. Returns the name of the listener that accepts the
    /// connection, or the error.
    fn outbound(&self, uid: u32, to: &str, port: u16) -> String {
        listener_name(self.connect_from_pod(uid, to, port))
    }

    /// Returns whether the rules redirect outbound connections.
    fn has_rules(&self) -> bool {
        self.rules().contains("PROXY_INIT_OUTPUT")
    }
}

/// Returns a listener's reply without the address.
fn listener_name(reply: String) -> String {
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

/// Returns the name of the iptables program of a mode.
fn iptables_program(mode: &str, ipv6: bool) -> String {
    let base = if ipv6 { "ip6tables" } else { "iptables" };
    match mode {
        "plain" => base.to_owned(),
        mode => format!("{base}-{mode}"),
    }
}

/// Starts listeners in the pod, for the proxy, its admin port and the app. Starts a server in the
/// neighbour's netns.
fn start_listeners(namespaces: &Namespaces) {
    namespaces.serve_in_pod("inbound", 4143);
    namespaces.serve_in_pod("outbound", 4140);
    namespaces.serve_in_pod("admin", 4191);
    namespaces.serve_in_pod("app", 8080);
    namespaces.serve_in_neighbour("server", 9000);
}
