//! Checks under the default AppArmor profiles of container runtimes. Agent and repair controller
//! run in containers of runc, with the capabilities and mounts that the chart gives them. The
//! plugin is run unconfined, as by a container runtime.

mod attempts;
mod denials;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linkerd2_cni::deadline::Deadline;
use linkerd2_cni::kube::plain_http;
use linkerd2_cni::netns::link;
use linkerd2_cni::node::plugin_call;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use testkit::namespaces::{Namespaces, POD};
use testkit::write_program;

use self::denials::Denials;
use crate::cluster::{self, Api, TENANT, meshed_pod, validator_failed};
use crate::container::{
    self, Container, ContainerSpec, THIS_PROGRAM, create_image, mount_this_program,
};
use crate::{Families, assert_redirected, chart, serve_as_proxy};

pub use self::attempts::run_inside;

const NETWORK_CONFIG: &str = "/etc/cni/net.d/10-net.conflist";
const PLUGIN: &str = "/opt/cni/bin/linkerd-cni";
const KUBECONFIG: &str = "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig";
const RESULTS: &str = "/var/lib/cni/results";
const NETNS_DIR: &str = "/run/netns";
/// Directory that Debian's package `apparmor` fills.
const POLICY_DIR: &str = "/etc/apparmor.d";
const LOADED_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const PLUGIN_CALL_BUDGET: Duration = Duration::from_secs(60);

/// The default profile of a container runtime.
#[derive(Clone, Copy)]
pub struct Profile {
    /// Name for `apparmor-profile` (scripts/apparmor).
    runtime: &'static str,
    name: &'static str,
    /// Whether the profile includes `abstractions/base`. Both runtimes include the file if it is on
    /// the node. It lets all other processes read and trace those of the profile, as far as these
    /// processes may do so themselves.
    has_abstractions: bool,
}

pub const CONTAINERD: Profile =
    Profile { runtime: "containerd", name: "cri-containerd.apparmor.d", has_abstractions: true };
pub const CONTAINERD_ALONE: Profile = Profile { has_abstractions: false, ..CONTAINERD };
pub const CRI_O: Profile =
    Profile { runtime: "cri-o", name: "crio-default", has_abstractions: true };
pub const CRI_O_ALONE: Profile = Profile { has_abstractions: false, ..CRI_O };

impl Profile {
    /// Returns whether the profile lets its processes be traced and read by each other.
    fn can_be_traced(self) -> bool {
        self.has_abstractions || self.runtime == "containerd"
    }

    /// Compiles the profile, and replaces it in the kernel.
    fn load(self) {
        const HIDDEN: &str = "/etc/hidden-apparmor.d";
        fs::create_dir_all("/sys/kernel/security").unwrap();
        mount_once("securityfs", "/sys/kernel/security");
        mount_once("cgroup2", "/sys/fs/cgroup");
        unload(self.name);
        if !self.has_abstractions {
            fs::rename(POLICY_DIR, HIDDEN).unwrap();
            fs::create_dir(POLICY_DIR).unwrap();
        }
        let output =
            Command::new("apparmor-profile").args(["load", self.runtime, self.name]).output();
        if !self.has_abstractions {
            fs::remove_dir(POLICY_DIR).unwrap();
            fs::rename(HIDDEN, POLICY_DIR).unwrap();
        }
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let loaded = fs::read_to_string(LOADED_PROFILES).unwrap();
        assert!(loaded.contains(&format!("{} (enforce)\n", self.name)), "{loaded}");
    }
}

/// Mounts a file system of the kernel if an earlier check has not mounted it.
fn mount_once(kind: &str, target: &str) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts.contains(&format!(" {target} {kind} ")) {
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
    }
}

/// Removes a profile from the kernel, because containerd does not replace a loaded one.
fn unload(name: &str) {
    if fs::read_to_string(LOADED_PROFILES).unwrap().contains(&format!("{name} (")) {
        fs::write("/sys/kernel/security/apparmor/.remove", name).unwrap();
    }
}

/// A node with a network config, a plugin of a primary CNI, and an API server.
struct Machine {
    profile: Profile,
    api: Api,
    denials: Denials,
}

/// A pod with its netns, mounted as container runtimes do.
struct Pod {
    name: &'static str,
    namespaces: Namespaces,
    _container: Container,
}

impl Machine {
    /// Loads the profile, and replaces what an earlier check has left on the node.
    fn new(profile: Profile) -> Machine {
        link::set_up("lo").unwrap();
        create_image();
        container::remove_all();
        for pod in fs::read_dir(NETNS_DIR).into_iter().flatten() {
            umount2(&pod.unwrap().path(), MntFlags::MNT_DETACH).unwrap();
        }
        for dir in ["/etc/cni", "/opt/cni", "/run/linkerd-cni", "/var/lib/cni", NETNS_DIR] {
            let _ = fs::remove_dir_all(dir);
        }
        for dir in ["/etc/cni/net.d", "/opt/cni/bin", NETNS_DIR, RESULTS] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(NETWORK_CONFIG, original_network_config()).unwrap();
        write_program("/opt/cni/bin/bridge", "#!/bin/sh\n");
        profile.load();
        Machine { profile, api: Api::start(), denials: Denials::begin() }
    }

    /// Starts a container of the chart under the profile.
    fn start(&self, name: &str) -> Container {
        Container::start(name, &chart::container(name, &self.api), self.profile.name)
    }

    /// Starts the agent, and waits until the node is verified. Returns the agent and the result of
    /// its self-test.
    fn start_agent(&self) -> (Container, String) {
        let mut agent = self.start("install-cni");
        agent.until_logged("is installed and verified");
        assert_eq!(agent.profile(), format!("{} (enforce)", self.profile.name));
        let log = agent.log();
        let (_, result) = log.split_once("self-test passed: ").unwrap_or_else(|| panic!("{log}"));
        let result = result.lines().next().unwrap().to_owned();
        // The self-test names an inbound and an outbound connection of each family.
        assert_eq!(result.matches("bound").count(), 4, "{result}");
        let (status, text) = get("127.0.0.1:9991/ready");
        assert_eq!(status, 200, "{text}");
        (agent, result)
    }

    /// Starts a pod whose process runs under the AppArmor profile `profile`. An empty one means
    /// unconfined, with all capabilities, as in a privileged pod.
    fn start_pod(&self, name: &'static str, profile: &str) -> Pod {
        let namespaces = Namespaces::new();
        serve_as_proxy(&namespaces);
        let netns = netns_path(name);
        fs::write(&netns, "").unwrap();
        let flags = MsFlags::MS_BIND;
        mount(Some(&namespaces.path()), &netns, None::<&str>, flags, None::<&str>).unwrap();
        let args = json!([["IgnoreUnknown", "1"], ["K8S_POD_UID", format!("uid-of-{name}")]]);
        let result = json!({"kind": "cniCacheV1", "cniArgs": args, "netns": netns});
        fs::write(format!("{RESULTS}/net-{name}-eth0"), result.to_string()).unwrap();
        let is_privileged = profile.is_empty();
        let spec = ContainerSpec {
            arguments: vec![THIS_PROGRAM.to_owned(), "wait".to_owned()],
            environment: Vec::new(),
            capabilities: if is_privileged { attempts::all_capabilities() } else { Vec::new() },
            mounts: vec![mount_this_program()],
            netns: Some(netns),
        };
        let mut container = Container::start(name, &spec, profile);
        container.until_logged("waiting");
        let expected =
            if is_privileged { "unconfined".to_owned() } else { format!("{profile} (enforce)") };
        assert_eq!(container.profile(), expected);
        Pod { name, namespaces, _container: container }
    }

    /// Returns a sentence on what AppArmor has denied. Fails if it was anything.
    fn assert_nothing_denied(&mut self) -> &'static str {
        let denials = self.denials.read();
        assert!(denials.is_empty(), "{denials:?}");
        "AppArmor logged no denial"
    }
}

impl Pod {
    /// Calls the installed plugin, with the entry of the installed network config.
    fn call(&self, command: &str) -> Result<Value, plugin_call::CallError> {
        let config: Value = read_json(NETWORK_CONFIG);
        let mut entry = config["plugins"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(entry["type"], "linkerd-cni");
        entry["name"] = config["name"].clone();
        entry["cniVersion"] = config["cniVersion"].clone();
        entry["prevResult"] = json!({"cniVersion": config["cniVersion"]});
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={TENANT};K8S_POD_NAME={name};K8S_POD_UID=uid-of-{name}",
            name = self.name
        );
        let netns = netns_path(self.name);
        let vars = [
            ("CNI_CONTAINERID", self.name),
            ("CNI_NETNS", netns.to_str().unwrap()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", &args),
        ];
        let deadline = Deadline::after(PLUGIN_CALL_BUDGET);
        plugin_call::call(Path::new(PLUGIN), command, &vars, &entry.to_string(), deadline)
    }

    /// Asserts that the kernel redirects the pod's connections, and that CHECK finds all rules.
    fn assert_redirected(&self) {
        assert_redirected(&self.namespaces, Families::Both);
        self.call("CHECK").unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = umount2(&netns_path(self.name), MntFlags::MNT_DETACH);
        let _ = fs::remove_file(netns_path(self.name));
    }
}

fn netns_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

fn original_network_config() -> String {
    json!({"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}).to_string()
}

fn read_json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn get(address_and_path: &str) -> (u16, String) {
    plain_http::get(&format!("http://{address_and_path}"), Duration::from_secs(10)).unwrap()
}

/// Returns a metric of the repair controller.
fn metric(name: &str) -> u64 {
    let (_, text) = get("127.0.0.1:9990/metrics");
    let prefix = format!("linkerd_cni_repair_controller_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// Asserts what the profile denies to a container with the agent's capabilities, and that nothing
/// of it is denied to an unconfined container. So the other checks run under a profile that has an
/// effect.
pub fn denies(profile: Profile) -> String {
    let mut machine = Machine::new(profile);
    let agent = chart::container("install-cni", &machine.api);
    let denied = attempts::assert_denied(profile, &agent);
    // The other checks assert that there is no such line.
    let logged = machine.denials.read();
    assert!(logged.iter().any(|line| line.contains(r#"operation="ptrace""#)), "{logged:?}");
    denied
}

/// Asserts that the agent installs, passes its self-test, receives the record of a plugin call, and
/// uninstalls.
pub fn agent(profile: Profile) -> String {
    let mut machine = Machine::new(profile);
    let pod = machine.start_pod("web-1", profile.name);
    let running = meshed_pod("web-1", POD[0], "Running", json!({}));
    cluster::set_pods(&machine.api, &[running]);
    let (mut agent, self_test) = machine.start_agent();
    assert!(Path::new(KUBECONFIG).exists());

    pod.call("CHECK").unwrap_err();
    pod.call("ADD").unwrap();
    pod.assert_redirected();
    agent.until_logged("ADD emojivoto/web-1 container web-1: redirected by native");
    let nothing_denied = machine.assert_nothing_denied();

    cluster::uninstall(&machine.api);
    let log = agent.stop();
    assert_eq!(fs::read_to_string(NETWORK_CONFIG).unwrap(), original_network_config(), "{log}");
    assert!(!Path::new(PLUGIN).exists() && !Path::new(KUBECONFIG).exists(), "{log}");
    machine.assert_nothing_denied();
    format!("installs, receives a record, uninstalls; self-test: {self_test}; {nothing_denied}")
}

/// Asserts that the repair controller repairs a pod under the same profile and an unconfined one,
/// which it finds by their validators, and another unconfined one, which it finds by an audit.
pub fn repair_controller(profile: Profile) -> String {
    let mut machine = Machine::new(profile);
    let (_agent, _) = machine.start_agent();
    let stranded =
        [machine.start_pod("confined", profile.name), machine.start_pod("unconfined", "")];
    let bare = machine.start_pod("bare", "");
    let mut pods: Vec<Value> = Vec::new();
    for pod in &stranded {
        pods.push(meshed_pod(pod.name, POD[0], "Pending", validator_failed()));
    }
    pods.push(meshed_pod(bare.name, POD[0], "Running", json!({})));
    cluster::set_pods(&machine.api, &pods);

    let begin = Instant::now();
    let mut controller = machine.start("repair-controller");
    controller.until_logged("serving");
    assert_eq!(controller.profile(), format!("{} (enforce)", profile.name));
    controller.until("three repairs", |_| metric("pods_repaired_total") == 3);
    let seconds = begin.elapsed().as_secs();
    for pod in stranded.iter().chain([&bare]) {
        pod.assert_redirected();
    }
    // All pods run now, and the audit reads their rules.
    let running = ["confined", "unconfined", "bare"]
        .map(|name| meshed_pod(name, POD[0], "Running", json!({})));
    cluster::set_pods(&machine.api, &running);
    controller.until("an audit of all rules", |_| metric("audit_pods_complete_total") >= 3);
    for counter in ["repair_errors_total", "audit_errors_total", "audit_pods_unreadable_total"] {
        assert_eq!(metric(counter), 0, "{counter}: {}", controller.log());
    }
    assert_eq!(metric("audit_pods_unknown"), 0, "{}", controller.log());
    controller.stop();
    let nothing_denied = machine.assert_nothing_denied();
    format!(
        "repairs a pod under the same profile and two unconfined ones within {seconds} s, and \
         reads their rules in an audit; {nothing_denied}"
    )
}
