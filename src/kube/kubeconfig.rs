//! The kubeconfig on the host: the agent renders it, the plugin reads it.
//!
//! It is written as JSON, which is YAML too; upstream's YAML is read as well, since
//! its installer may have been there before (contract 3.5).

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::files::regular;

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

/// What to take of a kubeconfig, as kubectl's options of these names say.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The current one of the kubeconfig if absent, and [`CONTEXT`] if that is too.
    pub context: Option<String>,
    /// Instead of the context's.
    pub cluster: Option<String>,
    /// Instead of the context's.
    pub user: Option<String>,
}

/// Reads the kubeconfig at `path` and takes what [`CONTEXT`] names.
pub fn read(path: &Path) -> Result<Access, Error> {
    let choice = Choice {
        context: Some(CONTEXT.to_owned()),
        ..Choice::default()
    };
    choose(path, &choice)
}

/// Reads the kubeconfig at `path` and takes what `choice` names.
pub fn choose(path: &Path, choice: &Choice) -> Result<Access, Error> {
    parse(path, &read_file(path)?, choice)
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
    content(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    let opened = regular::open(path)?;
    let (mut file, _) = opened.ok_or_else(|| io::Error::other("it is not a regular file"))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(path: &Path, bytes: &[u8], choice: &Choice) -> Result<Access, Error> {
    let file = decode(path, bytes)?;
    let missing = |what: String| Error::Missing {
        path: path.to_owned(),
        what,
    };
    let current = file.current_context.filter(|name| !name.is_empty());
    let name = choice.context.clone().or(current);
    let name = name.unwrap_or_else(|| CONTEXT.to_owned());
    let context = file
        .contexts
        .into_iter()
        .find(|context| context.name == name)
        .ok_or_else(|| missing(format!("context \"{name}\"")))?
        .context;
    let cluster_name = choice.cluster.clone().unwrap_or(context.cluster);
    let user_name = choice.user.clone().unwrap_or(context.user);
    let cluster = file
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == cluster_name)
        .ok_or_else(|| missing(format!("cluster \"{cluster_name}\"")))?
        .cluster;
    let user = file
        .users
        .into_iter()
        .find(|user| user.name == user_name)
        .ok_or_else(|| missing(format!("user \"{user_name}\"")))?
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
    let token = token
        .map(|token| token.trim().to_owned())
        .filter(|token| !token.is_empty());
    if let Some(token) = &token
        && !token.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    {
        return Err(Error::Field {
            path: path.to_owned(),
            field: "token",
            message: "has characters that no HTTP header can carry".to_owned(),
        });
    }
    Ok(Access {
        server: cluster.server,
        ca,
        insecure: cluster.insecure,
        token,
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
        return serde_json::from_slice(bytes).map_err(|error| syntax(described(&error)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| syntax(format!("neither JSON nor YAML: {}", error.info())))?;
    let value = documents.first().map_or(Value::Null, json_of);
    serde_json::from_value(value).map_err(|error| syntax(described(&error)))
}

/// serde's own words quote the value at fault, which may be a token.
fn described(error: &serde_json::Error) -> String {
    let form = match error.classify() {
        serde_json::error::Category::Data => "not the form of a kubeconfig",
        _ => "not valid JSON",
    };
    match error.line() {
        0 => form.to_owned(),
        line => format!("{form} at line {line} column {}", error.column()),
    }
}

/// YAML that kubeconfigs are made of: what JSON has too. Anything else is null.
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
struct File {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            server: server("fd00:10:96::1", "443"),
            ca: b"-----BEGIN CERTIFICATE-----".to_vec(),
            insecure: false,
            token: Some("secret".into()),
        }
    }

    fn parsed(text: &str) -> Result<Access, Error> {
        let choice = Choice {
            context: Some(CONTEXT.into()),
            ..Choice::default()
        };
        chosen(text, &choice)
    }

    fn chosen(text: &str, choice: &Choice) -> Result<Access, Error> {
        parse(Path::new("/kc"), text.as_bytes(), choice)
    }

    #[test]
    fn what_the_agent_renders_the_plugin_reads() {
        assert_eq!(parsed(&render(&access())).unwrap(), access());
        let insecure = Access {
            insecure: true,
            ca: Vec::new(),
            ..access()
        };
        assert_eq!(parsed(&render(&insecure)).unwrap(), insecure);
    }

    #[test]
    fn an_ipv6_host_is_put_in_brackets_once() {
        assert_eq!(server("10.96.0.1", "443"), "https://10.96.0.1:443");
        assert_eq!(server("fd00::1", "443"), "https://[fd00::1]:443");
        assert_eq!(server("[fd00::1]", "443"), "https://[fd00::1]:443");
    }

    #[test]
    fn upstreams_yaml_is_read() {
        let text = "# kubeconfig file\napiVersion: v1\nclusters:\n- name: local\n  cluster:\n    server: https://[fd00:10:96::1]:443\n    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\nusers:\n- name: linkerd-cni\n  user:\n    token: secret\ncontexts:\n- name: other\n  context: {}\n- name: linkerd-cni-context\n  context:\n    cluster: local\n    user: linkerd-cni";
        assert_eq!(parsed(text).unwrap(), access());
    }

    #[test]
    fn of_a_kubeconfig_the_current_context_counts_unless_another_choice_is_made() {
        let text = r#"{
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"cluster": "a", "user": "x"}},
                {"name": "two", "context": {"cluster": "b", "user": "y"}}
            ],
            "clusters": [
                {"name": "a", "cluster": {"server": "https://a"}},
                {"name": "b", "cluster": {"server": "https://b"}}
            ],
            "users": [
                {"name": "x", "user": {"token": "of-x"}},
                {"name": "y", "user": {"token": "of-y"}}
            ]
        }"#;
        for (context, cluster, user, expected) in [
            (None, None, None, ("https://a", "of-x")),
            (Some("two"), None, None, ("https://b", "of-y")),
            (None, Some("b"), None, ("https://b", "of-x")),
            (None, None, Some("y"), ("https://a", "of-y")),
        ] {
            let choice = Choice {
                context: context.map(str::to_owned),
                cluster: cluster.map(str::to_owned),
                user: user.map(str::to_owned),
            };
            let access = chosen(text, &choice).unwrap();
            let token = access.token.unwrap();
            assert_eq!((&*access.server, &*token), expected, "{choice:?}");
        }
        assert_eq!(
            chosen(&render(&access()), &Choice::default()).unwrap(),
            access()
        );
    }

    #[test]
    fn what_is_wrong_with_a_kubeconfig_is_said_without_its_secrets() {
        let good = render(&access());
        let cases = [
            (
                String::new(),
                "kubeconfig /kc: not the form of a kubeconfig",
            ),
            (
                "{\"users\": 1}".into(),
                "kubeconfig /kc: not the form of a kubeconfig at line 1 column 11",
            ),
            (
                "a: [".into(),
                "kubeconfig /kc: neither JSON nor YAML: while parsing a node, did not find expected node content",
            ),
            (
                good.replace(CONTEXT, "other"),
                "kubeconfig /kc: context \"linkerd-cni-context\" does not exist",
            ),
            (
                good.replace("\"name\": \"local\"", "\"name\": \"x\""),
                "kubeconfig /kc: cluster \"local\" does not exist",
            ),
            (
                good.replace("https://", "ftp://"),
                "kubeconfig /kc: server: \"ftp://[fd00:10:96::1]:443\" is not an https:// URL",
            ),
            (
                good.replace("secret", "se\\ncret"),
                "kubeconfig /kc: token: has characters that no HTTP header can carry",
            ),
            (
                good.replace("LS0t", "!!!!"),
                "kubeconfig /kc: certificate-authority-data: not base64: Invalid symbol 33, offset 0.",
            ),
        ];
        for (text, wanted) in cases {
            let message = parsed(&text).unwrap_err().to_string();
            assert_eq!(message, wanted);
            assert!(!message.contains("secret"));
        }
    }
}
