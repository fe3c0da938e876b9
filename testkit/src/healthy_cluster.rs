//! A cluster with a healthy installation, behind a socket as `kubectl proxy` opens it for `linkerd
//! cni`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chart::yaml;
use crate::cni::upstream_entry;

pub struct HealthyCluster {
    pub nodes: usize,
    pub status: String,
    pub is_ready: bool,
    pub latency: Duration,
}

impl HealthyCluster {
    /// Serves until the test's process ends. Returns a counter with the largest number of requests
    /// that were open at the same time.
    pub fn serve(self, listener: UnixListener) -> Arc<AtomicUsize> {
        let cluster = Arc::new(self);
        let open_requests = Arc::new(AtomicUsize::new(0));
        let most_open_requests = Arc::new(AtomicUsize::new(0));
        let returned = Arc::clone(&most_open_requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let cluster = Arc::clone(&cluster);
                let open_requests = Arc::clone(&open_requests);
                let most_open_requests = Arc::clone(&most_open_requests);
                thread::spawn(move || {
                    let open = open_requests.fetch_add(1, SeqCst) + 1;
                    most_open_requests.fetch_max(open, SeqCst);
                    cluster.respond(stream.unwrap());
                    open_requests.fetch_sub(1, SeqCst);
                });
            }
        });
        returned
    }

    fn respond(&self, mut stream: UnixStream) {
        let mut line = String::new();
        BufReader::new(&mut stream).read_line(&mut line).unwrap();
        // The first connection sends no request: `linkerd cni` only tests whether the socket is
        // open.
        let Some(path) = line.split_whitespace().nth(1).and_then(|path| path.split('?').next())
        else {
            return;
        };
        thread::sleep(self.latency);
        let (code, body) = match self.object(path) {
            Some(body) => ("200 OK", body),
            None => ("404 Not Found", json!({"reason": "NotFound", "message": path}).to_string()),
        };
        let _ = write!(stream, "HTTP/1.0 {code}\r\n\r\n{body}");
    }

    /// Returns a list with an item for each node. The nodes are numbered from 1.
    fn list_of_nodes(&self, item: impl Fn(usize) -> Value) -> Value {
        let items: Vec<Value> = (1..=self.nodes).map(item).collect();
        json!({"items": items})
    }

    fn object(&self, path: &str) -> Option<String> {
        static OBJECTS: LazyLock<Value> =
            LazyLock::new(|| yaml(include_str!("healthy_cluster.yaml")));
        let mut set = OBJECTS["set"].clone();
        for number in ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady"] {
            set["status"][number] = self.nodes.into();
        }
        let object = match path.rsplit('/').next()? {
            "status" => return Some(self.status.clone()),
            "version" => json!({"gitVersion": "v1.36.0"}),
            "nodes" => self.list_of_nodes(
                |number| json!({"metadata": {"name": format!("node-{number}")}, "spec": {}}),
            ),
            "daemonsets" => json!({"items": [set]}),
            "pods" if path.contains("/linkerd-cni/") => self.list_of_nodes(|number| {
                let mut agent = OBJECTS["agent"].clone();
                agent["metadata"]["uid"] = number.to_string().into();
                agent["spec"]["nodeName"] = format!("node-{number}").into();
                let ready = if self.is_ready { "True" } else { "False" };
                agent["status"]["conditions"][0]["status"] = ready.into();
                agent
            }),
            "pods" | "events" | "configmaps" => json!({"items": []}),
            "linkerd-cni-config" => {
                let entry = upstream_entry().to_string();
                json!({"metadata": {}, "data": {"cni_network_config": entry}})
            }
            "linkerd-cni" | "linkerd-cni-plugin" | "linkerd-cni-agent" => set,
            _ => return None,
        };
        Some(object.to_string())
    }
}
