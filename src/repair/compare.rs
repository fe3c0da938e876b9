//! Compares by meaning the redirect of the node's running meshed pods with the one that this plugin would
//! install, whichever plugin wrote the rules. Writes nothing on the node. `linkerd cni compare` starts it
//! on every node, beside upstream's release, and reads `/status`.

use std::error::Error;
use std::path::Path;

use nix::unistd::{chdir, chroot};

use super::audit::AuditedPod;
use super::comparison::Report;
use super::inspect::Inspector;
use super::metrics::Metrics;
use super::plugin_config;
use super::settings::Settings;
use crate::admin::{self, Handlers};
use crate::kube::connection::Connection;
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_stream::MAX_PODS;
use crate::kube::pod_watch;

/// Compares, then starts the server of the result, whose `/ready` succeeds.
pub fn run(
    settings: &Settings,
    root: &Path,
    mut connection: Connection,
) -> Result<(), admin::Error> {
    let report = compare(&mut connection, settings, root).unwrap_or_else(|error| Report {
        unknown: [(settings.node.clone(), error.to_string())].into(),
        ..Report::default()
    });
    // Strings and numbers can always be serialized.
    let body = serde_json::to_string(&report).unwrap_or_default();
    let handlers = Handlers {
        live: Box::new(|| Ok(())),
        ready: Box::new(|| Ok(None)),
        metrics: Box::new(|| Metrics::default().text()),
        status: Some(Box::new(move || body.clone())),
    };
    admin::serve(settings.admin_addr, handlers).map(drop)
}

fn compare(
    connection: &mut Connection,
    settings: &Settings,
    root: &Path,
) -> Result<Report, Box<dyn Error>> {
    let list = pod_watch::list::<AuditedPod>(connection, &settings.node)?;
    let client = connection.client()?;
    // Links such as /var/run would lead out of a mounted directory.
    chroot(root)?;
    chdir("/")?;
    let config = plugin_config::read(&settings.net_dir())?;
    let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
    let mut report = Report::default();
    for AuditedPod { pod, facts } in list.pods {
        let name = format!("{}/{}", pod.namespace, pod.name);
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
