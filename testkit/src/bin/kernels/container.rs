//! Containers that Debian's runc runs, with what a container runtime passes to runc.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use linkerd2_cni::child;
use linkerd2_cni::deadline::Deadline;
use serde_json::{Value, json};
use testkit::child::must;
use testkit::program;

/// Root file system of all containers, with the files of the image.
const IMAGE: &str = "/image";
/// Path of this program in containers.
pub const THIS_PROGRAM: &str = "/kernels";
/// Directory of runc's state.
const STATE_DIR: &str = "/run/runc";
const LIMIT: Duration = Duration::from_secs(120);

/// A container without the profile.
#[derive(Clone)]
pub struct ContainerSpec {
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub capabilities: Vec<String>,
    /// The mounts that not every container has.
    pub mounts: Vec<Value>,
    /// Path of the container's netns. `None`: the netns of the machine.
    pub netns: Option<PathBuf>,
}

/// Returns an OCI mount of a directory or file of the machine.
pub fn bind(source: &str, destination: &str, options: &[&str]) -> Value {
    let options = [&["rbind"], options].concat();
    json!({"source": source, "destination": destination, "type": "bind", "options": options})
}

/// Returns the mount of this program, for containers that run it.
pub fn mount_this_program() -> Value {
    bind(program("kernels").to_str().unwrap(), THIS_PROGRAM, &["rprivate", "ro"])
}

/// Creates the root file system of the image, as the Dockerfile does, for the first check.
pub fn create_image() {
    if Path::new(IMAGE).exists() {
        return;
    }
    for dir in ["opt/cni/bin", "usr/bin", "usr/lib/linkerd", "tmp", "linkerd"] {
        fs::create_dir_all(Path::new(IMAGE).join(dir)).unwrap();
    }
    for (name, path) in [("linkerd-cni", "opt/cni/bin"), ("linkerd2-cni-install", "usr/bin")] {
        fs::copy(program(name), Path::new(IMAGE).join(path).join(name)).unwrap();
    }
    let link = Path::new(IMAGE).join("usr/lib/linkerd/linkerd-cni-repair-controller");
    symlink("../../bin/linkerd2-cni-install", link).unwrap();
}

impl ContainerSpec {
    /// Renders the config for runc with this AppArmor profile. An empty one means unconfined.
    fn config(&self, profile: &str) -> Value {
        let mut namespaces = vec![
            json!({"type": "pid"}),
            json!({"type": "ipc"}),
            json!({"type": "uts"}),
            json!({"type": "mount"}),
            json!({"type": "cgroup"}),
        ];
        if let Some(netns) = &self.netns {
            namespaces.push(json!({"type": "network", "path": netns}));
        }
        let mut mounts = vec![
            mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
            mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "mode=0620"]),
            mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
            mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
            mount("cgroup", "/sys/fs/cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
        ];
        mounts.extend(self.mounts.iter().cloned());
        let capabilities = &self.capabilities;
        let mut environment = self.environment.clone();
        environment
            .push("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": self.arguments,
                "env": environment,
                "cwd": "/linkerd",
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                },
                "noNewPrivileges": true,
                "apparmorProfile": profile,
            },
            "root": {"path": IMAGE, "readonly": true},
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                // As containerd has them (pkg/oci/spec.go).
                "maskedPaths": [
                    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
                    "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
                    "/proc/sched_debug", "/sys/firmware", "/sys/devices/virtual/powercap",
                    "/proc/scsi",
                ],
                "readonlyPaths": [
                    "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
                ],
            },
        })
    }
}

fn mount(kind: &str, destination: &str, options: &[&str]) -> Value {
    json!({"source": kind, "destination": destination, "type": kind, "options": options})
}

/// A running container. Dropping the value removes it.
pub struct Container {
    id: String,
    runc: Child,
    log: PathBuf,
}

impl Container {
    /// Starts a container under this AppArmor profile. An empty one means unconfined.
    pub fn start(id: &str, spec: &ContainerSpec, profile: &str) -> Container {
        let bundle = Path::new("/run/bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        fs::write(bundle.join("config.json"), spec.config(profile).to_string()).unwrap();
        let log = bundle.join("log");
        let output = File::create(&log).unwrap();
        // Without pivot_root, because the root of the machine is its initramfs.
        let runc = runc(&["run", "--no-pivot", "--bundle", bundle.to_str().unwrap(), id])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Container { id: id.to_owned(), runc, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log contains `text`.
    pub fn until_logged(&mut self, text: &str) {
        self.until(text, |container| container.log().contains(text));
    }

    /// Waits until `condition` is true. Fails if the container ends before.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Container) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !condition(self) {
            let has_ended = self.runc.try_wait().unwrap().is_some();
            assert!(!has_ended && Instant::now() < deadline, "{what}: not seen: {}", self.log());
            sleep(Duration::from_millis(50));
        }
    }

    /// Returns the machine's PID of the container's process.
    pub fn pid(&self) -> u64 {
        let state = must(&mut runc(&["state", &self.id]));
        let state: Value = serde_json::from_str(&state).unwrap();
        state["pid"].as_u64().unwrap()
    }

    /// Returns the AppArmor profile of the container's process, with its mode.
    pub fn profile(&self) -> String {
        let path = format!("/proc/{}/attr/apparmor/current", self.pid());
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Waits until the container has ended, and returns its log. Fails unless its exit status is 0.
    pub fn wait(&mut self) -> String {
        let status = child::wait(&mut self.runc, Deadline::after(LIMIT)).unwrap();
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.log());
        self.log()
    }

    /// Sends SIGTERM, waits until the container has ended, and returns its log. Fails unless its
    /// exit status is 0.
    pub fn stop(&mut self) -> String {
        must(&mut runc(&["kill", &self.id, "TERM"]));
        self.wait()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = runc(&["delete", "--force", &self.id]).output();
        child::kill(&mut self.runc);
    }
}

/// Removes the containers that a failed check has left.
pub fn remove_all() {
    fs::create_dir_all(STATE_DIR).unwrap();
    let list = must(&mut runc(&["list", "--quiet"]));
    for id in list.lines() {
        must(&mut runc(&["delete", "--force", id]));
    }
}

fn runc(arguments: &[&str]) -> Command {
    let mut command = Command::new("runc");
    command.args(["--root", STATE_DIR]).args(arguments);
    command
}
