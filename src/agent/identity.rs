//! How the agent reaches the API server, and what it calls itself there: user agent, namespace and
//! pod.

use super::settings::Settings;
use crate::files;
use crate::kube::claims::Claims;
use crate::kube::connection::AccessSource;

/// User agent of the requests, which the API server's audit log shows.
pub const USER_AGENT: &str = "linkerd2-cni-install";
/// Why the agent sends no request that needs its namespace.
pub const NO_NAMESPACE: &str = "the agent's namespace is unknown: set LINKERD_CNI_NAMESPACE";

/// The name of a pod, and its UID if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

/// Returns how the agent reaches the API server. `None` if no address is configured.
pub fn access_source(settings: &Settings) -> Option<AccessSource> {
    Some(AccessSource::InCluster {
        host: settings.api_host.clone()?,
        port: settings.api_port.clone()?,
        dir: settings.service_account_dir.clone(),
    })
}

/// Returns the agent's namespace, from the settings or from the ServiceAccount's files.
pub fn agent_namespace(settings: &Settings) -> Option<String> {
    let name = match &settings.namespace {
        Some(name) => name.clone(),
        None => service_account_file(settings, "namespace")?,
    };
    let name = name.trim();
    if name.is_empty() { None } else { Some(name.to_owned()) }
}

/// Returns the name of the agent's pod. This is the name of the pod to which the agent's token is
/// bound, or else the one in the settings. Under upstream's chart only the token has the name.
pub fn pod_name(settings: &Settings) -> Option<PodName> {
    let namespace = agent_namespace(settings)?;
    let token = service_account_file(settings, "token").unwrap_or_default();
    let claims = Claims::read(token.trim()).unwrap_or_default();
    if let Some((name, uid)) = claims.pod() {
        return Some(PodName { namespace, name: name.to_owned(), uid: Some(uid.to_owned()) });
    }
    Some(PodName { namespace, name: settings.pod_name.clone()?, uid: None })
}

/// Returns the content of a file that Kubernetes mounts for the agent's ServiceAccount.
fn service_account_file(settings: &Settings, name: &str) -> Option<String> {
    let (bytes, _) = files::read(&settings.service_account_dir.join(name)).ok()?;
    String::from_utf8(bytes).ok()
}
