//! The kubeconfig on the host, which the agent renders and the plugin reads.
//!
//! It is written as JSON, which is also valid YAML. The YAML that upstream's agent writes is
//! read as well, as it may be on the host from an earlier installation.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use super::redact;
use crate::files;

/// Name of the context that the plugin uses, the same as upstream's.
pub const CONTEXT: &str = "linkerd-cni-context";

/// Directory in which Kubernetes mounts the token and the CA of a pod's ServiceAccount.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why a kubeconfig cannot be read. No variant carries a credential, so the error may be logged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Read(#[from] files::Error),
    #[error("kubeconfig {}: {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },
}

/// Address of an API server, and the credential for it.
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
pub fn server_url(host: &str, port: &str) -> String {
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if is_bare_ipv6 { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

/// Reads the access of the context [`CONTEXT`] from the kubeconfig at `path`.
pub fn read(path: &Path) -> Result<ApiAccess, Error> {
    let (bytes, _) = files::read(path)?;
    parse(path, &bytes)
}

/// Returns the access of the context [`CONTEXT`] in `bytes`, the content of the kubeconfig at
/// `path`. Relative paths in the kubeconfig start at its directory, as they do for kubectl. A value
/// of a wrong type counts as missing.
fn parse(path: &Path, bytes: &[u8]) -> Result<ApiAccess, Error> {
    let content = decode(bytes).map_err(|problem| invalid_error(path, problem))?;
    let kubeconfig = Kubeconfig { path, content };
    let context = kubeconfig.entry("context", CONTEXT)?;
    let cluster = kubeconfig.entry("cluster", context["cluster"].as_str().unwrap_or_default())?;
    let user = kubeconfig.entry("user", context["user"].as_str().unwrap_or_default())?;
    let server = cluster["server"].as_str().unwrap_or_default();
    if !server.starts_with("https://") && !server.starts_with("http://") {
        return Err(invalid_error(path, format!("server: \"{server}\" is not an https:// URL")));
    }
    let tls_server_name = cluster["tls-server-name"].as_str().filter(|name| !name.is_empty());
    Ok(ApiAccess {
        server: server.to_owned(),
        tls_server_name: tls_server_name.map(str::to_owned),
        ca: kubeconfig.ca(cluster)?,
        token: kubeconfig.token(user)?,
    })
}

fn invalid_error(path: &Path, problem: String) -> Error {
    Error::Invalid { path: path.to_owned(), problem }
}

/// A decoded kubeconfig at a path.
struct Kubeconfig<'a> {
    path: &'a Path,
    content: Value,
}

impl Kubeconfig<'_> {
    /// Returns the entry with this name; `kind` is `context`, `cluster` or `user`.
    fn entry(&self, kind: &str, name: &str) -> Result<&Value, Error> {
        let mut entries = self.content[format!("{kind}s")].as_array().into_iter().flatten();
        match entries.find(|entry| entry["name"] == name) {
            Some(entry) if entry[kind].is_object() => Ok(&entry[kind]),
            _ => Err(invalid_error(self.path, format!("{kind} \"{name}\" does not exist"))),
        }
    }

    fn ca(&self, cluster: &Value) -> Result<Vec<u8>, Error> {
        if let Some(data) = cluster["certificate-authority-data"].as_str() {
            return BASE64.decode(data.trim()).map_err(|error| {
                invalid_error(self.path, format!("certificate-authority-data: not base64: {error}"))
            });
        }
        match cluster["certificate-authority"].as_str() {
            Some(file) => self.read_file(file),
            None => Ok(Vec::new()),
        }
    }

    fn token(&self, user: &Value) -> Result<Option<String>, Error> {
        let token = match (user["token"].as_str(), user["tokenFile"].as_str()) {
            (Some(token), _) => token.to_owned(),
            (None, Some(file)) => String::from_utf8_lossy(&self.read_file(file)?).into_owned(),
            (None, None) => return Ok(None),
        };
        let token = token.trim();
        if token.is_empty() {
            return Ok(None);
        }
        if !token.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            let problem = "token: contains characters that are invalid in an HTTP header";
            return Err(invalid_error(self.path, problem.to_owned()));
        }
        Ok(Some(token.to_owned()))
    }

    fn read_file(&self, file: &str) -> Result<Vec<u8>, Error> {
        let (bytes, _) = files::read(&self.path.with_file_name(file))?;
        Ok(bytes)
    }
}

/// Decodes JSON or YAML. An error does not quote values, which may be tokens.
fn decode(bytes: &[u8]) -> Result<Value, String> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| redact::describe_json_error(&error));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| format!("neither JSON nor YAML: {}", error.info()))?;
    Ok(documents.first().map_or(Value::Null, yaml_to_json))
}

/// Converts YAML to JSON. YAML that JSON cannot express becomes null, but no kubeconfig contains
/// any.
fn yaml_to_json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => Value::from(text.as_str()),
        Yaml::Boolean(value) => Value::from(*value),
        Yaml::Integer(number) => Value::from(*number),
        Yaml::Array(items) => items.iter().map(yaml_to_json).collect(),
        Yaml::Hash(members) => {
            let mut object = Map::new();
            for (key, value) in members {
                if let Some(key) = key.as_str() {
                    object.insert(key.to_owned(), yaml_to_json(value));
                }
            }
            Value::Object(object)
        }
        _ => Value::Null,
    }
}

/// Renders a kubeconfig with this access.
pub fn render(access: &ApiAccess) -> String {
    let mut cluster = Map::new();
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
pub fn read_in_cluster(host: &str, port: &str, dir: &Path) -> Result<ApiAccess, Error> {
    let (token, _) = files::read(&dir.join("token"))?;
    let (ca, _) = files::read(&dir.join("ca.crt"))?;
    Ok(ApiAccess {
        server: server_url(host, port),
        tls_server_name: None,
        ca,
        token: Some(String::from_utf8_lossy(&token).trim().to_owned()),
    })
}

#[cfg(test)]
mod tests;
