//! helm with a configuration of its own and a local repository named `linkerd`, as a user has it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use crate::pods::kubectl;
use crate::upstream::{self, Program};

/// Dropping it uninstalls the release, if a failure left it.
pub struct Helm {
    home: tempfile::TempDir,
    namespace: &'static str,
}

impl Helm {
    pub fn with_local_repository() -> Self {
        Helm::in_namespace("linkerd-cni")
    }

    /// The same, with the release in another namespace.
    pub fn in_namespace(namespace: &'static str) -> Self {
        let helm = Helm { home: tempfile::tempdir().unwrap(), namespace };
        let repository = helm.home.path().join("repository");
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni");
        let [chart, directory] = [&chart, &repository].map(|path| path.to_str().unwrap());
        helm.must(&["package", chart, "--destination", directory]);
        helm.must(&["repo", "index", directory]);
        let url = serve(repository);
        helm.must(&["repo", "add", "linkerd", &url]);
        helm
    }

    /// `helm install` or `helm upgrade` as the README has it.
    #[allow(clippy::print_stdout, reason = "shows where a test's time goes")]
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
            // With `maxUnavailable: 1` and one node, helm waits for no pod at all.
            let daemonset = ["rollout", "status", "daemonset/linkerd-cni", "--timeout=60s"];
            kubectl(&[&daemonset[..], &["-n", self.namespace]].concat());
        }
        println!("{:>6.1?} helm {verb}", begin.elapsed());
    }

    /// Installs what stands for upstream's chart, under our release's name. Its image
    /// cannot be had here; ours takes what theirs is told.
    pub fn install_upstream(&self) {
        self.install_upstream_with(Program::OurAgent);
    }

    /// The same with another program in the pod.
    pub fn install_upstream_with(&self, program: Program) {
        let chart = self.home.path().join("upstream");
        upstream::write_chart(&chart, program);
        let version = concat!("image.version=v", env!("CARGO_PKG_VERSION"));
        let install = ["install", "linkerd-cni", chart.to_str().unwrap()];
        let into = ["-n", self.namespace, "--create-namespace", "--set", version];
        self.must(&[&install[..], &into].concat());
    }

    #[allow(clippy::print_stdout, reason = "shows where a test's time goes")]
    pub fn uninstall(&self) {
        let begin = Instant::now();
        self.begin_uninstall();
        self.end_uninstall();
        println!("{:>6.1?} the release is gone", begin.elapsed());
    }

    /// Returns before the agent is gone.
    pub fn begin_uninstall(&self) {
        self.must(&["uninstall", "linkerd-cni", "-n", self.namespace]);
    }

    /// Waits for what [`Helm::begin_uninstall`] left to end.
    pub fn end_uninstall(&self) {
        kubectl(&["wait", "-n", self.namespace, "--for=delete", "pod", "--all", "--timeout=60s"]);
        kubectl(&["delete", "namespace", self.namespace, "--timeout=60s"]);
    }

    /// Its output; panics with what it said if it fails.
    pub fn must(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn output(&self, args: &[&str]) -> Output {
        let home = self.home.path();
        Command::new("helm")
            .args(args)
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_DATA_HOME", home.join("data"))
            .output()
            .expect("helm runs; scripts/tools helm puts it where scripts/tools --path says")
    }
}

impl Drop for Helm {
    fn drop(&mut self) {
        if thread::panicking() {
            let release = ["uninstall", "linkerd-cni", "-n", self.namespace];
            let _ = self.output(&[&release[..], &["--wait", "--ignore-not-found"]].concat());
        }
    }
}

/// A chart repository is static files over HTTP.
fn serve(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&stream, &directory);
        }
    });
    url
}

fn answer(mut stream: &TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let name = path.trim_start_matches('/');
    let (status, body) = match fs::read(directory.join(name)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&body)
}
