//! A cluster with a healthy installation, behind a socket as `kubectl proxy` opens it for `linkerd
//! cni`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::chart::yaml;
use crate::cni::upstream_entry;
use crate::fake_cluster::{Refusal, Responses, respond};

pub struct HealthyCluster {
    pub namespace: &'static str,
    pub nodes: usize,
    /// Body of `/status` of each agent.
    pub status: String,
    pub is_ready: bool,
}

/// What a [`Server`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests for the `/status` of an agent.
    pub statuses: usize,
    /// Requests that wait for their response now, and the most at a time.
    pub waiting: usize,
    pub most_waiting: usize,
}

/// Responds until the test's process ends.
pub struct Server {
    responses: Responses,
    /// Number of requests for a `/status` that have to wait before any of them gets a response.
    gate: usize,
    counts: Mutex<Counts>,
    arrived: Condvar,
}

impl HealthyCluster {
    /// The API server's responses, by path.
    pub fn responses(&self) -> Responses {
        let objects = yaml(include_str!("healthy_cluster.yaml"));
        let namespace = self.namespace;
        let mut responses = Responses::new();
        for (path, object) in objects["objects"].as_object().unwrap() {
            responses.insert(path.replace("NAMESPACE", namespace), object.clone());
        }
        let mut daemonset = objects["set"].clone();
        daemonset["metadata"]["namespace"] = namespace.into();
        for field in ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady"] {
            daemonset["status"][field] = self.nodes.into();
        }
        responses.insert("/apis/apps/v1/daemonsets".into(), json!({"items": [daemonset]}));
        let entry = json!({"cni_network_config": upstream_entry().to_string()});
        let home = format!("/api/v1/namespaces/{namespace}");
        let config = format!("{home}/configmaps/linkerd-cni-config");
        responses.insert(config, json!({"metadata": {}, "data": entry}));
        let mut nodes = Vec::new();
        let mut agents = Vec::new();
        for number in 1..=self.nodes {
            let mut node = objects["node"].clone();
            node["metadata"]["name"] = format!("node-{number}").into();
            nodes.push(node);
            let mut agent = objects["agent"].clone();
            agent["metadata"]["name"] = format!("linkerd-cni-{number}").into();
            agent["metadata"]["uid"] = number.to_string().into();
            agent["spec"]["nodeName"] = format!("node-{number}").into();
            let ready = if self.is_ready { "True" } else { "False" };
            agent["status"]["conditions"][0]["status"] = ready.into();
            agents.push(agent);
            let status = format!("{home}/pods/linkerd-cni-{number}:9991/proxy/status");
            responses.insert(status, self.status.clone().into());
        }
        responses.insert("/api/v1/nodes".into(), json!({"items": nodes}));
        responses.insert(format!("{home}/pods"), json!({"items": agents}));
        responses
    }

    pub fn serve(&self, listener: UnixListener) -> Arc<Server> {
        serve(self.responses(), 0, listener)
    }
}

/// Serves these responses. No request for a `/status` gets a response before `gate` of them wait.
pub fn serve(responses: Responses, gate: usize, listener: UnixListener) -> Arc<Server> {
    let server =
        Arc::new(Server { responses, gate, counts: Mutex::default(), arrived: Condvar::new() });
    let accepting_server = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let server = Arc::clone(&accepting_server);
            thread::spawn(move || server.respond(stream.unwrap()));
        }
    });
    server
}

impl Server {
    pub fn counts(&self) -> Counts {
        *self.counts.lock().unwrap()
    }

    fn respond(&self, mut stream: UnixStream) {
        let mut line = String::new();
        BufReader::new(&mut stream).read_line(&mut line).unwrap();
        // The first connection sends no request: `linkerd cni` only tests whether the socket is
        // open.
        let mut words = line.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return;
        };
        let is_status = target.ends_with("/proxy/status");
        if is_status {
            self.wait_at_gate();
        }
        let (code, body) = response(&self.responses, method, target);
        if is_status {
            self.counts.lock().unwrap().waiting -= 1;
        }
        let _ = write!(stream, "HTTP/1.0 {code}\r\n\r\n{body}");
    }

    /// Counts a request for a `/status`, and waits until `gate` of them have arrived.
    fn wait_at_gate(&self) {
        let mut counts = self.counts.lock().unwrap();
        counts.statuses += 1;
        counts.waiting += 1;
        counts.most_waiting = counts.most_waiting.max(counts.waiting);
        self.arrived.notify_all();
        drop(self.arrived.wait_while(counts, |counts| counts.statuses < self.gate).unwrap());
    }
}

/// Returns status and body. A request that the cluster does not know fails.
fn response(responses: &Responses, method: &str, target: &str) -> (String, String) {
    match respond(responses, method, target) {
        Ok(body) => ("200 OK".to_owned(), body),
        Err(Refusal::Status { code, reason }) => {
            let body: Value = json!({"kind": "Status", "reason": reason, "message": target});
            (format!("{code} {reason}"), body.to_string())
        }
        Err(Refusal::NotKnown(what)) => {
            let body = json!({
                "kind": "Status",
                "reason": "BadRequest",
                "message": format!("not known: {what}"),
            });
            ("400 Bad Request".to_owned(), body.to_string())
        }
    }
}
