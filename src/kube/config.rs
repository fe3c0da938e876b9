//! The kubeconfig on the host: the agent renders it, the plugin reads it.
//!
//! It is written as JSON, which is YAML too; upstream's YAML is read as well, since
//! its installer may have been there before (contract 3.5).

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::json;

/// The context that the plugin asks for, as upstream's does.
pub const CONTEXT: &str = "linkerd-cni-context";

/// Where a pod finds its ServiceAccount's credential.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why a kubeconfig cannot be used. No variant carries a credential.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("kubeconfig {}: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("kubeconfig {}: {what} does not exist", path.display())]
    Missing { path: PathBuf, what: String },
    #[error("kubeconfig {}: {field}: {message}", path.display())]
    Field {
        path: PathBuf,
        field: &'static str,
        message: String,
    },
}

/// Where the API server is and what to show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// `https://host:port`, an IPv6 host in brackets.
    pub server: String,
    /// PEM certificates that may have signed the server's.
    pub ca: Vec<u8>,
    /// Do not verify the server's certificate (`insecure-skip-tls-verify`).
    pub insecure: bool,
    /// Bearer token, without white space around it.
    pub token: Option<String>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("server", &self.server)
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}

/// `https://host:port` of an API server, with an IPv6 host in brackets (D-18).
pub fn server(host: &str, port: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    }
}

/// Renders `access` as a kubeconfig whose only context is [`CONTEXT`].
pub fn render(access: &Access) -> String {
    let mut cluster = serde_json::Map::new();
    cluster.insert("server".into(), json!(access.server));
    if access.insecure {
        cluster.insert("insecure-skip-tls-verify".into(), json!(true));
    } else {
        cluster.insert(
            "certificate-authority-data".into(),
            json!(BASE64.encode(access.ca.trim_ascii())),
        );
    }
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

/// Reads the kubeconfig at `path` and takes what [`CONTEXT`] names.
pub fn read(path: &Path) -> Result<Access, Error> {
    parse(path, &read_file(path)?)
}

/// Reads what a pod is given: the API server's address from `host` and `port`
/// (`KUBERNETES_SERVICE_HOST`, `_PORT`), token and CA from `dir`.
pub fn in_cluster(host: &str, port: &str, dir: &Path) -> Result<Access, Error> {
    let token = read_file(&dir.join("token"))?;
    Ok(Access {
        server: server(host, port),
        ca: read_file(&dir.join("ca.crt"))?,
        insecure: false,
        token: Some(String::from_utf8_lossy(&token).trim().to_owned()),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Access, Error> {
    let file = decode(path, bytes)?;
    let missing = |what: String| Error::Missing {
        path: path.to_owned(),
        what,
    };
    let context = file
        .contexts
        .into_iter()
        .find(|context| context.name == CONTEXT)
        .ok_or_else(|| missing(format!("context \"{CONTEXT}\"")))?
        .context;
    let cluster = file
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == context.cluster)
        .ok_or_else(|| missing(format!("cluster \"{}\"", context.cluster)))?
        .cluster;
    let user = file
        .users
        .into_iter()
        .find(|user| user.name == context.user)
        .ok_or_else(|| missing(format!("user \"{}\"", context.user)))?
        .user;
    if !cluster.server.starts_with("https://") && !cluster.server.starts_with("http://") {
        return Err(Error::Field {
            path: path.to_owned(),
            field: "server",
            message: format!("\"{}\" is not an https:// URL", cluster.server),
        });
    }
    let ca = match (cluster.ca_data, cluster.ca_file) {
        (Some(data), _) => BASE64.decode(data.trim()).map_err(|error| Error::Field {
            path: path.to_owned(),
            field: "certificate-authority-data",
            message: format!("not base64: {error}"),
        })?,
        (None, Some(file)) => read_file(&beside(path, &file))?,
        (None, None) => Vec::new(),
    };
    let token = match (user.token, user.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => {
            let token = read_file(&beside(path, &file))?;
            Some(String::from_utf8_lossy(&token).into_owned())
        }
        (None, None) => None,
    };
    Ok(Access {
        server: cluster.server,
        ca,
        insecure: cluster.insecure,
        token: token
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty()),
    })
}

/// A relative path in a kubeconfig is relative to the kubeconfig, as in kubectl.
fn beside(kubeconfig: &Path, file: &Path) -> PathBuf {
    kubeconfig
        .parent()
        .map_or_else(|| file.to_owned(), |dir| dir.join(file))
}

fn decode(path: &Path, bytes: &[u8]) -> Result<File, Error> {
    let syntax = |message: String| Error::Syntax {
        path: path.to_owned(),
        message,
    };
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| syntax(error.to_string()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
    // The parser's own message quotes the text around the fault, which may be a token.
    serde_saphyr::from_str(text).map_err(|_| syntax("neither JSON nor YAML of a kubeconfig".into()))
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct Cluster {
    #[serde(default)]
    server: String,
    #[serde(rename = "certificate-authority-data")]
    ca_data: Option<String>,
    #[serde(rename = "certificate-authority")]
    ca_file: Option<PathBuf>,
    #[serde(rename = "insecure-skip-tls-verify", default)]
    insecure: bool,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    user: String,
}
