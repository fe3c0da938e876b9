//! Compares by meaning the redirect of the node's running meshed pods with the one that this plugin would
//! install, whichever plugin wrote the rules. Writes nothing on the node. `linkerd cni compare` starts it
//! on every node, beside upstream's release, and reads `/status`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot};

use crate::admin::{self, Handlers};
use crate::kube::connection::Connection;
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_stream::MAX_PODS;
use crate::kube::pod_watch;
use crate::repair::comparison::Report;
use crate::repair::find::audit::AuditedPod;
use crate::repair::inspect::Inspector;
use crate::repair::metrics::Metrics;
use crate::repair::settings::Settings;
use crate::repair::{self, plugin_config, spawn};

/// Starts the comparison, and the server of its result. `/ready` fails until there is a result.
pub fn start(
    settings: Settings,
    root: PathBuf,
    mut connection: Connection,
) -> Result<(), repair::Error> {
    let report = Arc::new(OnceLock::<String>::new());
    let (ready, status) = (Arc::clone(&report), Arc::clone(&report));
    let handlers = Handlers {
        live: Box::new(|| Ok(())),
        ready: Box::new(move || match ready.get() {
            Some(_) => Ok(None),
            None => Err("the node's pods are not compared yet".to_owned()),
        }),
        metrics: Box::new(|| Metrics::default().text()),
        status: Some(Box::new(move || status.get().cloned().unwrap_or_default())),
    };
    admin::serve(settings.admin_addr, handlers)?;
    spawn("compare", move || {
        let found = compare(&mut connection, &settings, &root).unwrap_or_else(|error| Report {
            unknown: [(settings.node.clone(), error.to_string())].into(),
            ..Report::default()
        });
        // Strings and numbers can always be serialized.
        let _ = report.set(serde_json::to_string(&found).unwrap_or_default());
    })
}

fn compare(
    connection: &mut Connection,
    settings: &Settings,
    root: &Path,
) -> Result<Report, Box<dyn Error>> {
    let list = pod_watch::list::<AuditedPod>(connection, &settings.node)?;
    let client = connection.client()?;
    // The root directory of this thread and of those that it starts. Links such as /var/run would lead
    // out of a mounted directory.
    unshare(CloneFlags::CLONE_FS)?;
    chroot(root)?;
    chdir("/")?;
    let config = plugin_config::read(&settings.net_dir())?;
    let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
    let mut report = Report::default();
    for AuditedPod { pod, facts } in list.pods {
        let name = format!("{}/{}", pod.namespace, pod.name);
        if pod.is_on_other_node(&settings.node) {
            continue;
        }
        match inspector.compare(&pod, facts) {
            Ok(found) if found.is_empty() => report.equal += 1,
            Ok(found) => drop(report.differ.insert(name, found)),
            Err(error) => drop(report.unknown.insert(name, error.to_string())),
        }
    }
    if list.dropped > 0 {
        let why = format!("{} pods, as the node has more than {MAX_PODS}", list.dropped);
        report.unknown.insert(settings.node.clone(), why);
    }
    Ok(report)
}
