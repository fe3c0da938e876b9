//! The structure of a kubeconfig file, and its decoding from JSON and YAML.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

use super::Error;

/// Parses a kubeconfig in JSON or YAML.
pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Kubeconfig, Error> {
    let syntax = |message: String| Error::Syntax { path: path.to_owned(), message };
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| syntax(describe(&error)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| syntax(format!("neither JSON nor YAML: {}", error.info())))?;
    let value = documents.first().map_or(Value::Null, json_of);
    serde_json::from_value(value).map_err(|error| syntax(describe(&error)))
}

/// Describes a decode error without its value, which may be a token. serde's own message quotes it.
fn describe(error: &serde_json::Error) -> String {
    let form = match error.classify() {
        serde_json::error::Category::Data => "unexpected content",
        _ => "not valid JSON",
    };
    match error.line() {
        0 => form.to_owned(),
        line => format!("{form} at line {line} column {}", error.column()),
    }
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

#[derive(Deserialize)]
pub(super) struct Kubeconfig {
    #[serde(default)]
    pub clusters: Vec<NamedCluster>,
    #[serde(default)]
    pub users: Vec<NamedUser>,
    #[serde(default)]
    pub contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
pub(super) struct NamedCluster {
    pub name: String,
    pub cluster: Cluster,
}

#[derive(Deserialize)]
pub(super) struct Cluster {
    #[serde(default)]
    pub server: String,
    #[serde(rename = "tls-server-name")]
    pub tls_server_name: Option<String>,
    #[serde(rename = "certificate-authority-data")]
    pub ca_data: Option<String>,
    #[serde(rename = "certificate-authority")]
    pub ca_file: Option<PathBuf>,
    #[serde(rename = "insecure-skip-tls-verify", default)]
    pub insecure: bool,
}

#[derive(Deserialize)]
pub(super) struct NamedUser {
    pub name: String,
    pub user: User,
}

#[derive(Deserialize)]
pub(super) struct User {
    pub token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
pub(super) struct NamedContext {
    pub name: String,
    pub context: Context,
}

#[derive(Deserialize)]
pub(super) struct Context {
    #[serde(default)]
    pub cluster: String,
    #[serde(default)]
    pub user: String,
}
