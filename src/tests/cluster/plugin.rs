//! The plugin without an API server, and without iptables on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::helm::Helm;
use crate::node::Node;
use crate::pods::{self, Pods};
use crate::until::until;

#[test]
fn without_an_api_server_unmeshed_pods_start_at_once_and_meshed_ones_say_why_they_wait() {
    let node = Node::exclusive();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &[]);
    pods.start(&[pods::unmeshed("client")]);
    let in_default = |mut pod: serde_json::Value| {
        pod["metadata"]["namespace"] = "default".into();
        pod
    };

    let meshed = node.without_api_server(|| {
        let begin = Instant::now();
        let meshed = node.static_pod(&in_default(pods::meshed("static-meshed")));
        let unmeshed = node.static_pod(&in_default(pods::unmeshed("static-unmeshed")));
        until("the unmeshed pod runs", || unmeshed.runs());
        println!("the unmeshed pod ran {:?} after its file was written", begin.elapsed());
        let log = node.kubelet_log();
        let mut lines = log.lines().filter(|line| line.contains("static-unmeshed"));
        assert!(
            !lines.any(|line| line.contains("CreatePodSandbox")),
            "its first ADD succeeds: {log}"
        );
        until("kubelet logs the plugin's error", || {
            let log = node.kubelet_log();
            let mut lines = log.lines().filter(|line| line.contains("static-meshed"));
            lines.any(|line| line.contains("cannot read pod default/static-meshed"))
        });
        assert!(!meshed.runs(), "a meshed pod must not start bare");
        meshed
    });
    until("the meshed pod runs", || meshed.runs());
    pods.until_proxied("client", &format!("{}:8080", meshed.address()));

    drop((meshed, pods));
    helm.remove();
}

#[test]
fn meshed_pods_are_redirected_on_a_host_that_has_no_iptables() {
    let _node = Node::exclusive();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &[]);
    pods.start(&[pods::unmeshed("client")]);
    let away = Away::iptables();
    assert!(!Path::new("/usr/sbin/iptables").exists());
    pods.start(&[pods::meshed("meshed")]);
    let target = format!("{}:8080", pods.ip("meshed"));
    let response = pods.connect("client", "app", &target);
    assert!(response.starts_with("proxy-inbound"), "{response}");
    let outbound = format!("{}:8080", pods.ip("client"));
    let response = pods.connect("meshed", "app", &outbound);
    assert!(response.starts_with("proxy-outbound"), "{response}");
    drop(away);
    assert!(Path::new("/usr/sbin/iptables").exists());

    drop(pods);
    helm.remove();
}

/// Programs of the host that are renamed until the value is dropped.
struct Away(Vec<PathBuf>);

const SUFFIX: &str = ".linkerd2-cni-test";

impl Away {
    /// Renames all programs of iptables, after restoring those that a killed test left renamed.
    fn iptables() -> Away {
        drop(Away(Self::find(|name| name.ends_with(SUFFIX))));
        let prefixes = ["iptables", "ip6tables", "xtables"];
        let found = Self::find(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        let away = Away(found.iter().map(|path| beside(path)).collect());
        for path in found {
            fs::rename(&path, beside(&path)).unwrap();
        }
        away
    }

    fn find(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Path::new);
        let mut found: Vec<PathBuf> = dirs
            .iter()
            .filter_map(|dir| fs::canonicalize(dir).ok())
            .flat_map(|dir| fs::read_dir(dir).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted))
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

fn beside(path: &Path) -> PathBuf {
    format!("{}{SUFFIX}", path.display()).into()
}

impl Drop for Away {
    fn drop(&mut self) {
        for path in &self.0 {
            let name = path.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let _ = fs::rename(path, name.unwrap());
        }
    }
}
