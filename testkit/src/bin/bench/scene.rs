//! The calls that are measured, and their surroundings: an API server, and namespaces of pods.

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
use testkit::chart::yaml;
use testkit::{cni, namespaces, node_copy};

/// End of the names of calls for which the node's copy has the pod.
const COPY: &str = ", copy";
pub const MESHED_COPY: &str = "meshed ADD, copy";

/// A call of a plugin by a container runtime.
#[derive(Clone)]
pub struct Call {
    pub name: String,
    program: PathBuf,
    /// The value of `CNI_COMMAND`.
    command: String,
    stdin: PathBuf,
    /// Whether each run gets a new netns without rules. The other calls share a netns with rules.
    needs_new_netns: bool,
}

impl Call {
    pub fn with_program(&self, program: &Path) -> Self {
        Call { program: program.to_owned(), ..self.clone() }
    }
}

pub struct Scene {
    pub api: Api,
    /// The calls. The first one is the yardstick, with whose time the others are compared.
    pub calls: Vec<Call>,
    /// Calls that this machine cannot run.
    pub unusable: Vec<Unusable>,
    /// A netns with redirect rules. The kernel removes it when this file is closed.
    redirected_netns: File,
    dir: tempfile::TempDir,
}

impl Scene {
    pub fn new(plugin: &Path, portmap: &Path) -> anyhow::Result<Self> {
        let api = Api::start();
        let dir = tempfile::tempdir()?;
        publish_pods(&api, &dir.path().join("run"));
        let access = ApiAccess {
            server: format!("https://{}", api.address),
            ca: api.ca().into_bytes(),
            token: Some(api::TOKEN.to_owned()),
            ..ApiAccess::default()
        };
        let kubeconfig = dir.path().join("ZZZ-linkerd-cni-kubeconfig");
        fs::write(&kubeconfig, kubeconfig::render(&access))?;
        receive_records(dir.path())?;
        let mut scene = Scene {
            api,
            calls: Vec::new(),
            unusable: Vec::new(),
            redirected_netns: netns::create()?,
            dir,
        };
        for row in data()["calls"].as_array().unwrap() {
            let program = if scene.calls.is_empty() { portmap } else { plugin }.to_owned();
            let stdin = scene.dir.path().join(format!("stdin-{}", scene.calls.len()));
            fs::write(&stdin, config(&kubeconfig, row).to_string())?;
            let name = row["name"].as_str().unwrap().to_owned();
            let command = row["command"].as_str().unwrap().to_owned();
            let needs_new_netns = name.starts_with("meshed ADD");
            scene.calls.push(Call { name, program, command, stdin, needs_new_netns });
            scene.remove_if_unusable(row)?;
        }
        // CHECK needs a netns with the rules of an ADD. The first call of the plugin is an ADD.
        let add = &scene.calls[1];
        let mut command = scene.program_command(add, plugin, &scene.redirected_netns)?;
        scene.run(add, &mut command)?;
        Ok(scene)
    }

    /// Removes the last call if this machine lacks its backend, such as a kernel without
    /// iptables-legacy. The machine is tested with a program of iptables instead of the plugin,
    /// because a failure of the plugin must fail the bench.
    fn remove_if_unusable(&mut self, row: &Value) -> anyhow::Result<()> {
        let Some(mode @ ("nft" | "legacy")) = row["mode"].as_str() else { return Ok(()) };
        let family = if row["ipv6"] == true { "ip6tables" } else { "iptables" };
        let program = format!("{family}-{mode}");
        let netns = netns::create()?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", namespaces::path(&netns).display()))
            .args([&program, "-w", "-t", "nat", "-S"]);
        let output = command.output()?;
        if !output.status.success()
            && let Some(call) = self.calls.pop()
        {
            let error = String::from_utf8_lossy(&output.stderr);
            let reason = format!("{program} fails on this machine: {}", error.trim());
            self.unusable.push(Unusable { name: call.name, reason });
        }
        Ok(())
    }

    /// Runs `call` once under the tool `wrapper`, see [`Scene::command`]. Fails if the call fails.
    pub fn run_once(&self, call: &Call, wrapper: &[&str]) -> anyhow::Result<()> {
        let netns = self.netns(call)?;
        self.run(call, &mut self.command(call, netns.as_ref(), wrapper)?)
    }

    /// Runs a command of `call`. Fails if the command fails.
    pub fn run(&self, call: &Call, command: &mut Command) -> anyhow::Result<()> {
        ensure!(command.status()?.success(), self.failure(call));
        Ok(())
    }

    /// Returns the new netns for a run of `call`. `None`: the call uses the netns that calls share.
    pub fn netns(&self, call: &Call) -> anyhow::Result<Option<File>> {
        if !call.needs_new_netns {
            return Ok(None);
        }
        Ok(Some(netns::create()?))
    }

    /// Returns the command for a run of `call`. If `wrapper` is not empty, it is a tool with its
    /// arguments, which runs the plugin.
    pub fn command(
        &self,
        call: &Call,
        netns: Option<&File>,
        wrapper: &[&str],
    ) -> anyhow::Result<Command> {
        let netns = netns.unwrap_or(&self.redirected_netns);
        let Some((tool, args)) = wrapper.split_first() else {
            return self.program_command(call, &call.program, netns);
        };
        let mut command = self.program_command(call, Path::new(tool), netns)?;
        command.args(args).arg(&call.program);
        Ok(command)
    }

    /// Returns the command that runs `program` with environment and stdin of `call`.
    fn program_command(
        &self,
        call: &Call,
        program: &Path,
        netns: &File,
    ) -> anyhow::Result<Command> {
        let pod = match &*call.name {
            name if name.starts_with("unmeshed") => "plain",
            name if name.contains("injected") || name == MESHED_COPY => "injected",
            _ => "web",
        };
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};\
             K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u-{pod}"
        );
        let netns = namespaces::path(netns).display().to_string();
        let run_dir = if call.name.ends_with(COPY) { "run" } else { "missing" };
        let mut command = Command::new(program);
        command
            .env_clear()
            .env(pod_copy::RUN_DIR_VARIABLE, self.dir.path().join(run_dir))
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(cni::environment(&call.command, &netns))
            .env("CNI_ARGS", args)
            .stdin(File::open(&call.stdin)?)
            .stdout(File::create(self.stdout_path())?)
            .stderr(Stdio::null());
        Ok(command)
    }

    fn stdout_path(&self) -> PathBuf {
        self.dir.path().join("stdout")
    }

    /// Path of the file into which a tool such as valgrind writes its output.
    pub fn tool_output(&self) -> String {
        let path = self.dir.path().join("notes");
        path.to_string_lossy().into_owned()
    }

    /// Describes the failure of a call, with the plugin's output.
    pub fn failure(&self, call: &Call) -> String {
        let output = fs::read_to_string(self.stdout_path()).unwrap_or_default();
        format!("{}: {output}", call.name)
    }
}

/// Receives the plugin's records like an agent, on a socket beside the kubeconfig.
fn receive_records(dir: &Path) -> anyhow::Result<()> {
    let socket = UnixDatagram::bind(dir.join(".linkerd-cni.sock"))?;
    thread::spawn(move || {
        let mut record = [0; 8192];
        while socket.recv(&mut record).is_ok() {}
    });
    Ok(())
}

/// Makes pods available at the API server, and publishes them in the node's copy. The objects have
/// the size of those of a real cluster.
fn publish_pods(api: &Api, run_dir: &Path) {
    for (name, created_by, containers) in [
        ("web", "linkerd/cli edge-26.1.1", 2),
        ("injected", "linkerd/proxy-injector edge-26.1.1", 2),
        ("plain", "", 1),
    ] {
        let object = pod(name, created_by, containers).to_string();
        api.answer(&format!("/api/v1/namespaces/shop/pods/{name}"), 200, &object);
        node_copy::publish(run_dir, ["shop", name, &format!("u-{name}")], &object);
    }
    api.answer("/api/v1/namespaces/shop", 200, &data()["namespace"].to_string());
}

/// A pod with this number of containers, and with as many variables as the injector adds.
fn pod(name: &str, created_by: &str, count: usize) -> Value {
    let mut fields = Vec::new();
    for number in 0..40 {
        let key = format!("k:{{\"name\":\"LINKERD2_PROXY_{number}\"}}");
        fields.push(json!({key: {".": {}, "f:name": {}, "f:value": {}}}));
    }
    let mut environment = Vec::new();
    for number in 0..60 {
        let value = format!("value-{number}.linkerd.svc.cluster.local.:8080");
        environment.push(json!({"name": format!("LINKERD2_PROXY_{number}"), "value": value}));
    }
    let data = data();
    let mut containers = data["containers"].as_array().unwrap()[..count].to_vec();
    for container in &mut containers {
        container["env"] = environment.clone().into();
    }
    let mut pod = data["pod"].clone();
    pod["spec"]["containers"] = containers.into();
    let metadata = &mut pod["metadata"];
    metadata["name"] = name.into();
    metadata["uid"] = format!("u-{name}").into();
    metadata["labels"]["app"] = name.into();
    metadata["annotations"]["linkerd.io/created-by"] = created_by.into();
    metadata["managedFields"][0]["fieldsV1"] = fields.into();
    pod
}

/// Returns the config of a call. If the call's row has no annotations, the runtime passes none.
fn config(kubeconfig: &Path, row: &Value) -> Value {
    if row["config"].is_object() {
        return row["config"].clone();
    }
    let mut config = data()["config"].take();
    config["kubernetes"]["kubeconfig"] = json!(kubeconfig);
    config["linkerd"]["iptables-mode"] = row["mode"].as_str().unwrap_or("auto").into();
    config["linkerd"]["ipv6"] = json!(row["ipv6"] == true);
    if let Some(annotations) = row.get("annotations") {
        config["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": annotations});
    }
    config
}

pub fn data() -> Value {
    yaml(include_str!("scene.yaml"))
}
