//! Helm with isolated settings and a local repository named `linkerd`.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use linkerd2_cni::VERSION;

use super::pods::{self, kubectl};
use super::upstream::{self, Program};
use crate::server::Connection;

/// Namespace of the release, which stays after a test: its deletion takes 5 s.
pub const NAMESPACE: &str = "linkerd-cni";

/// Helm and the release in one namespace. If the test panics, dropping the value uninstalls the release.
pub struct Helm {
    namespace: &'static str,
}

/// Directory of helm's settings and of the repository, which all tests share.
static HOME: OnceLock<PathBuf> = OnceLock::new();

impl Helm {
    pub fn with_local_repository() -> Self {
        Helm::in_namespace(NAMESPACE)
    }

    /// The same, for a release in another namespace.
    pub fn in_namespace(namespace: &'static str) -> Self {
        Helm { namespace }
    }

    /// Runs `helm install` or `helm upgrade` with the README's arguments.
    pub fn run(&self, verb: &str, more: &[&str]) {
        let begin = Instant::now();
        let mut args = vec![verb, "linkerd-cni", "linkerd/linkerd2-cni"];
        args.extend(["-n", self.namespace, "--wait", "--timeout", "60s"]);
        args.extend((verb == "install").then_some("--create-namespace"));
        args.extend(more);
        let output = self.output(&args);
        assert!(
            output.status.success(),
            "helm {verb}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            kubectl(&["get", "pods,events", "-n", self.namespace])
        );
        if verb == "upgrade" {
            // With `maxUnavailable: 1` and one node, helm does not wait for any pod.
            let daemonset = ["rollout", "status", "daemonset/linkerd-cni", "--timeout=60s"];
            kubectl(&[&daemonset[..], &["-n", self.namespace]].concat());
        }
        println!("{:>6.1?} helm {verb}", begin.elapsed());
    }

    /// Installs a packaged chart with the image of an archive, which has another digest than the chart names.
    pub fn install_chart(&self, package: &Path) {
        let version = format!("image.version=v{VERSION}");
        let install = ["install", "linkerd-cni", package.to_str().unwrap(), "--set", &version];
        let into = ["-n", self.namespace, "--create-namespace", "--wait", "--timeout", "60s"];
        self.must(&[&install[..], &into].concat());
    }

    /// Installs the stand-in for upstream's chart, with the same release name. It runs this project's image, as
    /// upstream's is not available here.
    pub fn install_upstream(&self) {
        self.install_upstream_with(Program::OurAgent);
    }

    /// The same with another program in the pod.
    pub fn install_upstream_with(&self, program: Program) {
        let chart = home().join("upstream");
        upstream::write_chart(&chart, program);
        let version = format!("image.version=v{VERSION}");
        let install = ["install", "linkerd-cni", chart.to_str().unwrap()];
        let into = ["-n", self.namespace, "--create-namespace", "--set", &version];
        self.must(&[&install[..], &into].concat());
    }

    /// Runs `helm uninstall` and waits until the agents have ended. As helm deletes the accounts together with the
    /// DaemonSet, an agent takes some 15 s: the API server accepts tokens of deleted accounts for 10 s.
    pub fn uninstall(&self) {
        let begin = Instant::now();
        self.begin_uninstall();
        self.end_uninstall();
        println!("{:>6.1?} the release is uninstalled", begin.elapsed());
    }

    /// Runs `helm uninstall`, which does not wait for the agents.
    pub fn begin_uninstall(&self) {
        self.must(&["uninstall", "linkerd-cni", "-n", self.namespace]);
    }

    /// Waits until the agents of an uninstalled release have ended.
    pub fn end_uninstall(&self) {
        kubectl(&["wait", "-n", self.namespace, "--for=delete", "pod", "--all", "--timeout=60s"]);
    }

    /// Deletes the DaemonSet, then uninstalls the release. An agent of this chart sees that its DaemonSet is deleted
    /// and uninstalls at once; agents of upstream's chart have no right to see it.
    pub fn remove(&self) {
        let begin = Instant::now();
        let set = ["delete", "daemonset", "linkerd-cni", "-n", self.namespace];
        kubectl(
            &[&set[..], &["--cascade=foreground", "--timeout=60s", "--ignore-not-found"]].concat(),
        );
        self.uninstall();
        println!("{:>6.1?} the release is removed", begin.elapsed());
    }

    /// Rolls the release back to its first revision.
    pub fn rollback(&self, more: &[&str]) {
        self.must(&[&["rollback", "linkerd-cni", "1", "-n", self.namespace], more].concat());
    }

    /// Runs helm and returns its output. Panics with its error if it fails.
    pub fn must(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn output(&self, args: &[&str]) -> Output {
        command_in(home(), args).output().expect(MISSING)
    }
}

const MISSING: &str = "helm runs; scripts/tools helm puts it where scripts/tools --path says";

fn home() -> &'static Path {
    HOME.get_or_init(make_home)
}

/// Creates helm's settings with the repository `linkerd`, which has the chart.
fn make_home() -> PathBuf {
    // Test programs may run side by side on nodes of scripts/node, which have different names.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let home = crate::repository().join("target/tmp/cluster-helm").join(host.trim());
    let _ = fs::remove_dir_all(&home);
    let repository = home.join("repository");
    let chart = crate::repository().join("charts/linkerd2-cni");
    let [chart, directory] = [&chart, &repository].map(|path| path.to_str().unwrap());
    let url = serve(repository.clone());
    for args in [
        &["package", chart, "--destination", directory][..],
        &["repo", "index", directory],
        &["repo", "add", "linkerd", &url],
    ] {
        let output = command_in(&home, args).output().expect(MISSING);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {error}");
    }
    home
}

fn command_in(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("helm");
    command
        .args(args)
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_DATA_HOME", home.join("data"));
    command
}

impl Drop for Helm {
    fn drop(&mut self) {
        if thread::panicking() {
            let release = ["uninstall", "linkerd-cni", "-n", self.namespace];
            let _ = self.output(&[&release[..], &["--wait", "--ignore-not-found"]].concat());
            // Else the next test could find the plugin on the node.
            let wait = ["wait", "-n", self.namespace, "--for=delete", "pod", "--all"];
            let _ = pods::command(&wait).arg("--timeout=60s").output();
        }
    }
}

/// Serves a chart repository's files over HTTP. Returns the URL.
fn serve(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let directory = directory.clone();
            thread::spawn(move || respond(stream, &directory));
        }
    });
    url
}

/// Responds until the client ends the connection.
fn respond(stream: TcpStream, directory: &Path) -> Option<()> {
    let mut connection = Connection::new(stream, None)?;
    loop {
        let request = connection.read_request()?;
        match fs::read(directory.join(request.path.trim_start_matches('/'))) {
            Ok(body) => connection.send_response(200, body)?,
            Err(_) => connection.send_response(404, "")?,
        }
    }
}
