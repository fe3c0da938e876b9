//! A stand-in for upstream's agent, which writes its files and, when it ends, removes them, binary first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::active;
use crate::agent::KUBECONFIG;
use crate::cni::upstream_entry;
use crate::node::replace;
use crate::pods::{self, kubectl};
use crate::scene::OnDrop;
use testkit::repeated::Repeated;

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const ACCOUNT: &str = "upstream-agent";

pub fn active_conflist() -> (PathBuf, String) {
    let path = active::path("").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Creates a ServiceAccount with the rights of upstream's. Dropping the value deletes it.
pub fn account() -> OnDrop<impl FnMut()> {
    kubectl(&format!("create serviceaccount {ACCOUNT} -n default"));
    let account = format!("--serviceaccount=default:{ACCOUNT}");
    kubectl(&format!("create clusterrolebinding {ACCOUNT} --clusterrole=view {account}"));
    OnDrop(|| {
        for object in ["serviceaccount", "clusterrolebinding"] {
            let _ = pods::command(&format!("delete {object} {ACCOUNT} -n default")).output();
        }
    })
}

pub struct Upstream(Option<Repeated<Files>>);

struct Files {
    list: PathBuf,
    original: String,
    chained: String,
    is_over: bool,
}

impl Upstream {
    pub fn start(list: &Path, original: &str) -> Upstream {
        Upstream::start_until(list, original, || false)
    }

    pub fn start_until(
        list: &Path,
        original: &str,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> Upstream {
        let plugin = fs::read(env!("CARGO_BIN_EXE_linkerd-cni")).unwrap();
        replace(Path::new(BINARY), "install", plugin, 0o755);
        replace(Path::new(KUBECONFIG), "install", kubeconfig(), 0o644);
        let (list, original, chained) = (list.to_owned(), original.to_owned(), chained(original));
        let files = Files { list, original, chained, is_over: false };
        Upstream(Some(Repeated::start(Duration::from_millis(1), files, move |files| {
            if !files.is_over && is_over() {
                files.uninstall();
            } else if !files.is_over
                && fs::read_to_string(&files.list).unwrap_or_default() != files.chained
            {
                // This project's agent may delete the temporary file as a leftover of upstream's.
                replace(&files.list, "install", &files.chained, 0o644);
            }
        })))
    }
}

impl Files {
    fn uninstall(&mut self) {
        for path in [BINARY, KUBECONFIG] {
            let _ = fs::remove_file(path);
        }
        let _ = fs::write(&self.list, &self.original);
        self.is_over = true;
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let mut files = self.0.take().expect("only this method takes it").finish();
        if !files.is_over {
            files.uninstall();
        }
    }
}

fn chained(original: &str) -> String {
    let mut list: Value = serde_json::from_str(original).unwrap();
    let mut entry = upstream_entry();
    entry["kubernetes"]["kubeconfig"] = KUBECONFIG.into();
    list["plugins"].as_array_mut().unwrap().push(entry);
    serde_json::to_string_pretty(&list).unwrap()
}

fn kubeconfig() -> String {
    let own = kubectl("config view --raw --minify --flatten -o json");
    let own: Value = serde_json::from_str(&own).unwrap();
    let cluster = &own["clusters"][0]["cluster"];
    let token = kubectl(&format!("create token {ACCOUNT} -n default"));
    let text = include_str!("upstream_kubeconfig.yaml").trim_end();
    text.replace("CLUSTER", &cluster.to_string()).replace("TOKEN", token.trim())
}
