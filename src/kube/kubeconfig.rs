//! The kubeconfig on the host, which the agent renders and the plugin reads.
//!
//! It is written as JSON, which is also valid YAML. The YAML that upstream's agent writes is
//! read as well, as it may be on the host from an earlier installation.

mod parse;

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use crate::files;

/// Name of the context that the plugin uses, the same as upstream's.
pub const CONTEXT: &str = "linkerd-cni-context";

/// Directory with the credential of a pod's ServiceAccount.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// No variant carries a credential.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Read(#[from] files::Error),
    #[error("kubeconfig {}: {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiAccess {
    /// `https://host:port`, an IPv6 host in brackets.
    pub server: String,
    /// Name in the server's certificate, if it differs from the host in `server`
    /// (`tls-server-name`).
    pub tls_server_name: Option<String>,
    /// PEM certificates of the CAs that the server's certificate may come from.
    pub ca: Vec<u8>,
    /// Bearer token, without leading and trailing white space.
    pub token: Option<String>,
}

/// Omits CA and token.
impl fmt::Debug for ApiAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiAccess")
            .field("server", &self.server)
            .field("tls_server_name", &self.tls_server_name)
            .finish_non_exhaustive()
    }
}

/// Returns `https://host:port`, with an IPv6 host in brackets. Upstream omits the brackets, so its
/// kubeconfig is unusable in IPv6-only clusters.
pub fn server(host: &str, port: &str) -> String {
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if is_bare_ipv6 { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

pub fn read(path: &Path) -> Result<ApiAccess, Error> {
    parse::parse(path, &files::read(path)?.0)
}

pub fn render(access: &ApiAccess) -> String {
    let mut cluster = serde_json::Map::new();
    cluster.insert("server".into(), json!(access.server));
    if let Some(name) = &access.tls_server_name {
        cluster.insert("tls-server-name".into(), json!(name));
    }
    let ca = BASE64.encode(access.ca.trim_ascii());
    cluster.insert("certificate-authority-data".into(), json!(ca));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "linkerd-cni", "user": {"token": access.token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "local", "user": "linkerd-cni"}}],
        "current-context": CONTEXT,
    });
    format!("{kubeconfig:#}\n")
}

/// Returns the API access that Kubernetes gives each pod: the API server's address from `host` and
/// `port` (`KUBERNETES_SERVICE_HOST`, `KUBERNETES_SERVICE_PORT`), token and CA from files in `dir`.
pub fn in_cluster(host: &str, port: &str, dir: &Path) -> Result<ApiAccess, Error> {
    let (token, _) = files::read(&dir.join("token"))?;
    Ok(ApiAccess {
        server: server(host, port),
        tls_server_name: None,
        ca: files::read(&dir.join("ca.crt"))?.0,
        token: Some(String::from_utf8_lossy(&token).trim().to_owned()),
    })
}

#[cfg(test)]
mod tests;
