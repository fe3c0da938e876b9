//! Parses a kubeconfig, and selects the cluster and the user of the plugin's context.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

use super::{ApiAccess, CONTEXT, Error};
use crate::files;
use crate::kube::redact;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kubeconfig {
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
    contexts: Vec<Named<Context>>,
}

/// An item of one of the three lists. Its value is in a field named for the list.
#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "cluster", alias = "user", alias = "context")]
    value: Option<T>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct User {
    token: Option<String>,
    token_file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

/// Returns the access of the context [`CONTEXT`] in the kubeconfig `bytes`, which was read from
/// `path`. Relative paths in the kubeconfig start at the directory of `path`, as for kubectl.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<ApiAccess, Error> {
    let invalid = |problem| Error::Invalid { path: path.to_owned(), problem };
    let read = |file: PathBuf| files::read(&path.with_file_name(file)).map(|(bytes, _)| bytes);
    let file = decode(bytes).map_err(invalid)?;
    let context = find("context", file.contexts, CONTEXT).map_err(invalid)?;
    let cluster = find("cluster", file.clusters, &context.cluster).map_err(invalid)?;
    let user = find("user", file.users, &context.user).map_err(invalid)?;
    let server = cluster.server;
    if !server.starts_with("https://") && !server.starts_with("http://") {
        return Err(invalid(format!("server: \"{server}\" is not an https:// URL")));
    }
    let ca = match (cluster.certificate_authority_data, cluster.certificate_authority) {
        (Some(data), _) => BASE64
            .decode(data.trim())
            .map_err(|error| invalid(format!("certificate-authority-data: not base64: {error}")))?,
        (None, Some(file)) => read(file)?,
        (None, None) => Vec::new(),
    };
    let token = match (user.token, user.token_file) {
        (None, Some(file)) => Some(String::from_utf8_lossy(&read(file)?).into_owned()),
        (token, _) => token,
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
    {
        let problem = "token: contains characters that are invalid in an HTTP header";
        return Err(invalid(problem.to_owned()));
    }
    Ok(ApiAccess {
        server,
        tls_server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
        ca,
        token,
    })
}

fn find<T>(kind: &str, items: Vec<Named<T>>, name: &str) -> Result<T, String> {
    let found = items.into_iter().find(|item| item.name == name);
    let item = found.ok_or_else(|| format!("{kind} \"{name}\" does not exist"))?;
    item.value.ok_or_else(|| format!("field {kind} of {kind} \"{name}\" does not exist"))
}

/// Decodes JSON or YAML. An error does not quote values, which may be tokens.
fn decode(bytes: &[u8]) -> Result<Kubeconfig, String> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| redact::problem(&error));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| format!("neither JSON nor YAML: {}", error.info()))?;
    let value = documents.first().map_or(Value::Null, json_of);
    serde_json::from_value(value).map_err(|error| redact::problem(&error))
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
