//! What is measured: the calls of a runtime, an API server, and namespaces of pods.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::ensure;
use linkerd2_cni::kube::kubeconfig::{self, ApiAccess};
use linkerd2_cni::{netns, pod_copy};
use serde_json::{Value, json};

use testkit::api::{self, Api};
use testkit::benchmarks::Unusable;
use testkit::{cni, namespaces, node_copy};

/// Annotation `linkerd.io/created-by` of an injected pod.
const INJECTOR: &str = "linkerd/proxy-injector edge-26.1.1";

/// ADD of a meshed pod by each backend: name of the row, `iptables-mode`, and whether IPv6 is redirected too.
const BACKENDS: &[(&str, &str, bool)] = &[
    ("meshed ADD, native, IPv4", "native", false),
    ("meshed ADD, native, IPv4 and IPv6", "native", true),
    ("meshed ADD, nft, IPv4", "nft", false),
    ("meshed ADD, nft, IPv4 and IPv6", "nft", true),
    ("meshed ADD, legacy, IPv4", "legacy", false),
    ("meshed ADD, legacy, IPv4 and IPv6", "legacy", true),
];

/// End of the names of rows in which the node's copy has the pod.
const COPY: &str = ", copy";
/// ADD of a meshed pod by the node's copy.
pub const MESHED_COPY: &str = "meshed ADD, copy";

/// One call of a plugin, to be repeated.
#[derive(Clone)]
pub struct Call {
    pub name: &'static str,
    program: PathBuf,
    command: &'static str,
    stdin: PathBuf,
    /// Whether each run gets a namespace without rules.
    fresh: bool,
}

impl Call {
    pub fn by(&self, program: &Path) -> Self {
        Call { program: program.to_owned(), ..self.clone() }
    }
}

/// The API server, the files of a node, and all calls.
pub struct Scene {
    pub api: Api,
    /// The first is the yardstick.
    pub calls: Vec<Call>,
    pub unusable: Vec<Unusable>,
    /// Network namespace with redirect rules. A namespace goes when its file is closed.
    redirected: File,
    dir: tempfile::TempDir,
}

impl Scene {
    pub fn new(plugin: &Path, portmap: &Path) -> anyhow::Result<Self> {
        let api = Api::start();
        let dir = tempfile::tempdir()?;
        answer(&api, &dir.path().join("run"));
        let access = ApiAccess {
            server: format!("https://{}", api.address),
            ca: api.ca().into_bytes(),
            token: Some(api::TOKEN.to_owned()),
            ..ApiAccess::default()
        };
        let kubeconfig = dir.path().join("ZZZ-linkerd-cni-kubeconfig");
        fs::write(&kubeconfig, kubeconfig::render(&access))?;
        listen(dir.path())?;
        let mut scene = Scene {
            api,
            calls: Vec::new(),
            unusable: Vec::new(),
            redirected: netns::fresh()?,
            dir,
        };
        let meshed = json!({"linkerd.io/proxy-version": "edge-26.1.1"});
        let plain = json!({"kubernetes.io/config.source": "api"});
        let auto = |annotations| config(&kubeconfig, "auto", annotations);
        scene.call("portmap ADD, nothing to do", portmap, "ADD", &portmap_config())?;
        scene.call("meshed ADD, auto", plugin, "ADD", &auto(&meshed))?;
        let injected = json!({"linkerd.io/created-by": INJECTOR});
        scene.call("meshed ADD, injected", plugin, "ADD", &auto(&injected))?;
        scene.call(MESHED_COPY, plugin, "ADD", &auto(&injected))?;
        scene.call("unmeshed ADD, copy", plugin, "ADD", &auto(&plain))?;
        scene.call("unmeshed ADD, annotations", plugin, "ADD", &auto(&plain))?;
        scene.call("unmeshed ADD, by request", plugin, "ADD", &auto(&Value::Null))?;
        scene.call("meshed CHECK, auto", plugin, "CHECK", &auto(&meshed))?;
        scene.call("DEL", plugin, "DEL", &auto(&meshed))?;
        scene.call("STATUS", plugin, "STATUS", &auto(&meshed))?;
        scene.call("VERSION", plugin, "VERSION", &json!({}))?;
        scene.redirect(plugin)?;
        for &(name, mode, ipv6) in BACKENDS {
            let mut backend = config(&kubeconfig, mode, &meshed);
            backend["linkerd"]["ipv6"] = json!(ipv6);
            scene.call(name, plugin, "ADD", &backend)?;
            scene.drop_if_unusable(mode, ipv6)?;
        }
        Ok(scene)
    }

    /// Drops the last call if this machine lacks the backend, such as a kernel without iptables-legacy. A program of
    /// iptables tells, as a failure of the plugin has to be an error.
    fn drop_if_unusable(&mut self, mode: &str, ipv6: bool) -> anyhow::Result<()> {
        if mode == "native" {
            return Ok(());
        }
        let program = format!("{}-{mode}", if ipv6 { "ip6tables" } else { "iptables" });
        let netns = netns::fresh()?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", namespaces::path(&netns).display()))
            .args([&program, "-w", "-t", "nat", "-S"]);
        let output = command.output()?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            let reason = format!("{program} fails on this machine: {}", error.trim());
            let dropped =
                self.calls.pop().map(|call| Unusable { name: call.name.to_owned(), reason });
            self.unusable.extend(dropped);
        }
        Ok(())
    }

    fn call(
        &mut self,
        name: &'static str,
        program: &Path,
        command: &'static str,
        config: &Value,
    ) -> anyhow::Result<()> {
        let stdin = self.dir.path().join(format!("stdin-{}", self.calls.len()));
        fs::write(&stdin, config.to_string())?;
        self.calls.push(Call {
            name,
            program: program.to_owned(),
            command,
            stdin,
            fresh: name.starts_with("meshed ADD"),
        });
        Ok(())
    }

    /// The namespace that CHECK looks at.
    fn redirect(&self, plugin: &Path) -> anyhow::Result<()> {
        let add = &self.calls[1];
        self.succeed(add, &mut self.command(add, plugin, &self.redirected)?)
    }

    /// Runs the command, and fails with what it printed if it fails.
    pub fn succeed(&self, call: &Call, command: &mut Command) -> anyhow::Result<()> {
        ensure!(command.status()?.success(), self.failure(call));
        Ok(())
    }

    /// A namespace for one run of `call`, if it needs one without rules.
    pub fn netns(&self, call: &Call) -> anyhow::Result<Option<File>> {
        Ok(call.fresh.then(netns::fresh).transpose()?)
    }

    /// One run of `call`, by way of `wrapper` (a tool and its arguments) if there is one.
    pub fn run(
        &self,
        call: &Call,
        netns: Option<&File>,
        wrapper: &[&str],
    ) -> anyhow::Result<Command> {
        let netns = netns.unwrap_or(&self.redirected);
        let Some((tool, args)) = wrapper.split_first() else {
            return self.command(call, &call.program, netns);
        };
        let mut command = self.command(call, Path::new(tool), netns)?;
        command.args(args).arg(&call.program);
        Ok(command)
    }

    fn command(&self, call: &Call, program: &Path, netns: &File) -> anyhow::Result<Command> {
        let pod = match call.name {
            name if name.starts_with("unmeshed") => "plain",
            name if name.contains("injected") || name == MESHED_COPY => "injected",
            _ => "web",
        };
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u-{pod}"
        );
        let netns = namespaces::path(netns).display().to_string();
        let run_dir = if call.name.ends_with(COPY) { "run" } else { "missing" };
        let mut command = Command::new(program);
        command
            .env_clear()
            .env(pod_copy::RUN_DIR_VARIABLE, self.dir.path().join(run_dir))
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(cni::environment(call.command, &netns))
            .env("CNI_ARGS", args)
            .stdin(File::open(&call.stdin)?)
            .stdout(File::create(self.output())?)
            .stderr(Stdio::null());
        Ok(command)
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("stdout")
    }

    /// Where tools write what they found.
    pub fn notes(&self) -> String {
        let path = self.dir.path().join("notes");
        path.to_string_lossy().into_owned()
    }

    pub fn failure(&self, call: &Call) -> String {
        let printed = fs::read_to_string(self.output()).unwrap_or_default();
        format!("{}: {printed}", call.name)
    }
}

/// The agent listens for records beside the kubeconfig.
fn listen(dir: &Path) -> anyhow::Result<()> {
    let socket = UnixDatagram::bind(dir.join(".linkerd-cni.sock"))?;
    thread::spawn(move || {
        let mut record = [0; 8192];
        while socket.recv(&mut record).is_ok() {}
    });
    Ok(())
}

/// Answers of the size that a cluster's have, and a copy of the same pods.
fn answer(api: &Api, run_dir: &Path) {
    let fields: Vec<Value> = (0..40)
        .map(|n| json!({format!("k:{{\"name\":\"LINKERD2_PROXY_{n}\"}}"): {".": {}, "f:name": {}, "f:value": {}}}))
        .collect();
    let environment: Vec<Value> = (0..60)
        .map(|n| json!({"name": format!("LINKERD2_PROXY_{n}"), "value": format!("value-{n}.linkerd.svc.cluster.local.:8080")}))
        .collect();
    let pod = |name: &str, created_by: &str, containers: Value| {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "shop", "uid": format!("u-{name}"), "labels": {"app": name},
                "annotations": {"linkerd.io/inject": "enabled", "linkerd.io/created-by": created_by},
                "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}]},
            "spec": {"nodeName": "node", "containers": containers, "volumes": []},
            "status": {"phase": "Pending", "qosClass": "BestEffort"}})
    };
    let app = json!({"name": "app", "image": "app:1", "env": environment});
    let proxy = json!({"name": "linkerd-proxy", "image": "proxy:1", "env": environment,
        "securityContext": {"runAsUser": 2102}});
    let meshed = pod("web", "linkerd/cli edge-26.1.1", json!([app, proxy])).to_string();
    let injected = pod("injected", INJECTOR, json!([app, proxy])).to_string();
    let plain = pod("plain", "", json!([app])).to_string();
    let namespace = json!({"kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "shop"}}});
    for (name, object) in [("web", meshed), ("injected", injected), ("plain", plain)] {
        api.answer(&format!("/api/v1/namespaces/shop/pods/{name}"), 200, &object);
        node_copy::publish(run_dir, ["shop", name, &format!("u-{name}")], &object);
    }
    api.answer("/api/v1/namespaces/shop", 200, &namespace.to_string());
}

/// The chart's default configuration; annotations of null are not handed over.
fn config(kubeconfig: &Path, mode: &str, annotations: &Value) -> Value {
    let mut config = default_config();
    config["kubernetes"]["kubeconfig"] = json!(kubeconfig);
    config["linkerd"]["iptables-mode"] = mode.into();
    if !annotations.is_null() {
        config["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": annotations});
    }
    config
}

fn portmap_config() -> Value {
    json!({"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "portmap",
        "capabilities": {"portMappings": true}, "prevResult": default_config()["prevResult"]})
}

fn default_config() -> Value {
    serde_json::from_str(include_str!("config.json")).unwrap()
}
