//! A node for tests of mode `in-place` and of audits, with a conflist, pods and their network
//! namespaces. Needs root.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use linkerd2_cni::cni::object::Object;
use linkerd2_cni::config::Config;
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::redirect::Redirect;
use linkerd2_cni::redirect::backend_order::Backend;
use linkerd2_cni::{firewall, netns};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{Api, Request};
use crate::controller::Controller;
use crate::namespaces::{NEIGHBOUR, Namespaces, POD};
use crate::{path, stranded};

const SECOND: Duration = Duration::from_secs(1);

/// A node with one pod, `web-1`, which has its own netns.
pub struct Node {
    pub api: Api,
    pub namespaces: Namespaces,
    pub root: TempDir,
}

impl Node {
    pub fn new() -> Self {
        let node = Node {
            api: Api::start(),
            namespaces: Namespaces::new(),
            root: TempDir::new().unwrap(),
        };
        node.name_netns(&node.namespaces, "pod");
        node.chain(&entry("auto"));
        // Invalid elements are ignored, as in the plugin.
        let annotations = json!({"config.linkerd.io/skip-outbound-ports": "http,9999,30-20"});
        let object = json!({"metadata": {"name": "emojivoto", "annotations": annotations}});
        node.api.answer("/api/v1/namespaces/emojivoto", 200, &object.to_string());
        node
    }

    /// Creates a node with this pod. The runtime has a cached CNI result of the pod.
    pub fn with(pod: &Value) -> Self {
        let node = Node::new();
        node.cache_cni_result("uid-of-web-1");
        node.knows(pod);
        node
    }

    /// Creates a directory of the node, and returns its path.
    pub fn dir(&self, path: &str) -> std::path::PathBuf {
        let dir = self.root.path().join(path);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Writes a conflist with this plugin entry.
    pub fn chain(&self, entry: &Value) {
        let plugins = json!([{"type": "bridge"}, entry]);
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
        let path = self.dir("etc/cni/net.d").join("10-net.conflist");
        fs::write(path, list.to_string()).unwrap();
    }

    /// Sets the modification time of the conflist, as if the plugin had been chained then.
    pub fn chained_at(&self, time: SystemTime) {
        let path = self.dir("etc/cni/net.d").join("10-net.conflist");
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    /// Makes the netns available under this name in `/var/run/netns`, as runtimes do.
    pub fn name_netns(&self, namespaces: &Namespaces, name: &str) {
        symlink(namespaces.path(), self.dir("var/run/netns").join(name)).unwrap();
    }

    /// Writes a cached CNI result that maps the pod with `uid` to the netns.
    pub fn cache_cni_result(&self, uid: &str) {
        self.cache_result_of(uid, "pod");
    }

    /// Writes a cached CNI result that maps the pod with `uid` to the netns with this name.
    pub fn cache_result_of(&self, uid: &str, netns: &str) {
        self.cache_result(uid, netns, &json!([["IgnoreUnknown", "1"], ["K8S_POD_UID", uid]]));
    }

    /// Writes the cached CNI result of a runtime that passes the pod's name, but not its UID.
    pub fn cache_result_by_name(&self, namespace: &str, name: &str) {
        let args = json!([["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name]]);
        self.cache_result(name, "pod", &args);
    }

    fn cache_result(&self, file: &str, netns: &str, args: &Value) {
        let sandbox = format!("/var/run/netns/{netns}");
        let result = json!({
            "kind": "cniCacheV1",
            "cniArgs": args,
            "result": {"interfaces": [{"name": "eth0", "sandbox": sandbox}]},
        });
        let file = self.dir("var/lib/cni/results").join(format!("net-{file}-eth0"));
        fs::write(file, result.to_string()).unwrap();
    }

    /// Adds the pod to the API server, at its path and in the list.
    pub fn knows(&self, pod: &Value) {
        self.api.answer(&path("web-1"), 200, &pod.to_string());
        self.api.state().pods = vec![pod.clone()];
    }

    /// Starts the controller for this node, in mode `in-place` unless the arguments set a mode.
    pub fn controller(&self, arguments: &[&str]) -> Controller {
        let prefix = format!("--mount-prefix={}", self.root.path().display());
        let mut all = vec![&*prefix];
        all.extend(arguments);
        if !arguments.iter().any(|argument| argument.starts_with("--mode")) {
            all.push("--mode=in-place");
        }
        Controller::with(&self.api, &all)
    }

    /// Starts the controller with an audit every second.
    pub fn auditing(&self, arguments: &[&str]) -> Controller {
        self.controller(&[&["--audit-seconds=1"], arguments].concat())
    }

    /// Starts the controller with an audit every second, and waits until it has repaired one pod.
    pub fn repaired(&self) -> Controller {
        let controller = self.auditing(&[]);
        controller.until_metric_is("pods_repaired_total", 1);
        controller
    }

    pub fn ruleset(&self) -> String {
        self.namespaces.run("nft", &["list", "ruleset"])
    }

    /// Connects from the pod to its neighbour, and returns the response.
    pub fn response(&self) -> String {
        self.namespaces.connect_from_pod(0, NEIGHBOUR[0], 80)
    }

    /// Returns the requests that delete, evict or change a pod.
    pub fn changes(&self) -> Vec<Request> {
        self.api.received(|request| {
            ["DELETE", "PATCH"].contains(&&*request.method) || request.is_eviction()
        })
    }

    /// Events, without the one that ends the reports of earlier controllers.
    pub fn events(&self) -> Vec<Value> {
        let mut events = self.api.events();
        events.retain(|event| event["action"] != "Audited");
        events
    }
}

/// Returns a plugin entry with this `iptables-mode`.
pub fn entry(mode: &str) -> Value {
    json!({"type": "linkerd-cni", "name": "linkerd-cni", "linkerd": {
        "incoming-proxy-port": 4143,
        "outgoing-proxy-port": 4140,
        "proxy-uid": 2102,
        "iptables-mode": mode,
    }})
}

/// Returns the pod in the phase Running, with its IP address.
pub fn running() -> Value {
    let mut pod = stranded("web-1");
    pod["spec"]["containers"] = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    pod["status"] = json!({"phase": "Running", "podIPs": [{"ip": POD[0]}]});
    pod
}

/// Returns the pod while its validator fails, with its IP address.
pub fn waiting() -> Value {
    let mut pod = running();
    pod["status"] = stranded("web-1")["status"].clone();
    pod["status"]["podIPs"] = json!([{"ip": POD[0]}]);
    pod
}

/// Creates a node with a running pod. Its rules were installed with `iptablesMode` set to `mode`.
pub fn meshed(mode: &str) -> Node {
    let node = Node::with(&running());
    add(&node, mode, "9999");
    node
}

/// Returns the redirect of a pod that skips these outbound ports, with `iptablesMode` set to
/// `mode`.
pub fn redirect(mode: &str, skip_outbound: &str) -> Redirect {
    let key = "config.linkerd.io/skip-outbound-ports".to_owned();
    let annotations = [(key, skip_outbound.to_owned())].into();
    let facts = PodFacts { annotations, ..PodFacts::default() };
    config(mode).redirect(&facts).unwrap()
}

fn config(mode: &str) -> Config {
    let entry: Object = serde_json::from_value(entry(mode)).unwrap();
    Config::read(&entry).unwrap()
}

/// Installs the pod's rules as the plugin would with `iptablesMode` set to `mode`.
pub fn add(node: &Node, mode: &str, skip_outbound: &str) {
    add_in(&node.namespaces.path(), mode, skip_outbound);
}

/// Installs rules like [`add`], in the netns at `path`.
pub fn add_in(path: &Path, mode: &str, skip_outbound: &str) {
    let config = config(mode);
    let spec = firewall::rule_spec(redirect(mode, skip_outbound), config.ipv6);
    assert_ne!(config.backends, Backend::AUTO);
    let work = move || firewall::apply(&spec, config.backends);
    netns::run(path, 20 * SECOND, work).unwrap().unwrap();
}

/// A connection from the pod to its neighbour that is redirected to the proxy.
pub struct Connection {
    pub app: TcpStream,
    pub proxy: TcpStream,
}

impl Connection {
    pub fn through(node: &Node) -> Self {
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

    /// Asserts that data can be sent in both directions.
    pub fn exchanges_data(&mut self) {
        let mut received = [0; 4];
        self.app.write_all(b"ping").unwrap();
        self.proxy.read_exact(&mut received).unwrap();
        self.proxy.write_all(b"pong").unwrap();
        self.app.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"pong");
    }
}
