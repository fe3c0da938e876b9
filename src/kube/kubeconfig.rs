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
    parse(path, &files::read(path)?.0)
}

/// Returns the access of the context [`CONTEXT`] in `bytes`, the kubeconfig at `path`. As for
/// kubectl, relative paths in it start at its directory. A value of a wrong type counts as missing.
fn parse(path: &Path, bytes: &[u8]) -> Result<ApiAccess, Error> {
    let invalid = |problem| Error::Invalid { path: path.to_owned(), problem };
    let read = |file| files::read(&path.with_file_name(file)).map(|(bytes, _)| bytes);
    let file = decode(bytes).map_err(invalid)?;
    let find = |kind: &str, name: &str| {
        let items = file[format!("{kind}s")].as_array().into_iter().flatten();
        let found = items.into_iter().find(|item| item["name"] == name).map(|item| &item[kind]);
        let found = found.filter(|value| value.is_object());
        found.ok_or_else(|| invalid(format!("{kind} \"{name}\" does not exist")))
    };
    let context = find("context", CONTEXT)?;
    let cluster = find("cluster", context["cluster"].as_str().unwrap_or_default())?;
    let user = find("user", context["user"].as_str().unwrap_or_default())?;
    let server = cluster["server"].as_str().unwrap_or_default();
    if !server.starts_with("https://") && !server.starts_with("http://") {
        return Err(invalid(format!("server: \"{server}\" is not an https:// URL")));
    }
    let ca = match &cluster["certificate-authority-data"] {
        Value::String(data) => BASE64
            .decode(data.trim())
            .map_err(|error| invalid(format!("certificate-authority-data: not base64: {error}")))?,
        _ => cluster["certificate-authority"].as_str().map_or(Ok(Vec::new()), read)?,
    };
    let token = match (user["token"].as_str(), user["tokenFile"].as_str()) {
        (None, Some(file)) => String::from_utf8_lossy(&read(file)?).into_owned(),
        (token, _) => token.unwrap_or_default().to_owned(),
    };
    let token = Some(token.trim().to_owned()).filter(|token| !token.is_empty());
    if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
    {
        let problem = "token: contains characters that are invalid in an HTTP header";
        return Err(invalid(problem.to_owned()));
    }
    let tls_server_name = cluster["tls-server-name"].as_str().filter(|name| !name.is_empty());
    Ok(ApiAccess {
        server: server.to_owned(),
        tls_server_name: tls_server_name.map(str::to_owned),
        ca,
        token,
    })
}

/// Decodes JSON or YAML. An error does not quote values, which may be tokens.
fn decode(bytes: &[u8]) -> Result<Value, String> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| redact::problem(&error));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| format!("neither JSON nor YAML: {}", error.info()))?;
    Ok(documents.first().map_or(Value::Null, json_of))
}

/// Converts YAML to JSON. YAML that JSON cannot express becomes null; kubeconfigs have none.
fn json_of(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => Value::from(text.as_str()),
        Yaml::Boolean(value) => Value::from(*value),
        Yaml::Integer(number) => Value::from(*number),
        Yaml::Array(items) => items.iter().map(json_of).collect(),
        Yaml::Hash(members) => members
            .iter()
            .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), json_of(value))))
            .collect::<Map<_, _>>()
            .into(),
        _ => Value::Null,
    }
}

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
