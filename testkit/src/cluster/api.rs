//! Requests to the API server of the cluster of `KUBECONFIG`. Tests read and poll through this
//! client, because each start of kubectl takes a tenth of a second of processor time. The commands
//! that users type go through kubectl.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

use crate::chart::{read, yaml};
use crate::until::becomes_true;

/// Longest duration of a request.
const REQUEST: Duration = Duration::from_secs(30);
/// Longest wait for the end of a deleted object.
const DELETION: Duration = Duration::from_secs(60);
/// Longest response that is read, in bytes.
const BODY_LIMIT: u64 = 64 << 20;

static ADMIN: LazyLock<Api> = LazyLock::new(Api::of_admin);

/// A client with one credential. Its connections stay open between requests.
pub struct Api {
    http: Agent,
    server: String,
    /// `None`: the credential is the certificate of the client.
    token: Option<String>,
}

#[derive(Debug)]
pub struct Error {
    /// HTTP status. `None`: the API server has not responded.
    pub code: Option<u16>,
    /// What the API server has responded, or why it has not responded.
    pub text: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "HTTP {code}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// Returns the client of the administrator.
pub fn admin() -> &'static Api {
    &ADMIN
}

/// Returns the object at a path such as `/api/v1/nodes/NAME`. Panics if the request fails.
#[track_caller]
pub fn get(path: &str) -> Value {
    admin().get(path).unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// Returns the items of the list at a path, which may have a selector. Panics if the request fails.
#[track_caller]
pub fn list(path: &str) -> Vec<Value> {
    serde_json::from_value(get(path)["items"].take()).unwrap()
}

/// Creates an object. Panics if the request fails.
#[track_caller]
pub fn create(object: &Value) {
    if let Err(error) = admin().create(object) {
        panic!("cannot create {object}: {error}");
    }
}

/// Deletes what is at a path, and waits for its end. The path may have options of the deletion,
/// such as `?gracePeriodSeconds=0`. Panics if the object does not exist.
#[track_caller]
pub fn delete(path: &str) {
    if let Err(error) = admin().delete_and_wait(path) {
        panic!("DELETE {path}: {error}");
    }
}

/// Returns the status of an object's condition, such as `True`. Empty if it has no such condition.
pub fn condition<'o>(object: &'o Value, name: &str) -> &'o str {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    match conditions.find(|condition| condition["type"] == name) {
        Some(condition) => condition["status"].as_str().unwrap_or_default(),
        None => "",
    }
}

impl Api {
    fn of_admin() -> Api {
        let user = kubeconfig()["users"][0]["user"].take();
        let certificate = Certificate::from_pem(&decode(&user["client-certificate-data"]));
        let key = PrivateKey::from_pem(&decode(&user["client-key-data"])).unwrap();
        Api::new(Some(ClientCert::new_with_certs(&[certificate.unwrap()], key)), None)
    }

    pub fn with_token(token: String) -> Api {
        Api::new(None, Some(token))
    }

    fn new(certificate: Option<ClientCert>, token: Option<String>) -> Api {
        let cluster = kubeconfig()["clusters"][0]["cluster"].take();
        let ca = Certificate::from_pem(&decode(&cluster["certificate-authority-data"])).unwrap();
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&[ca]))
            .client_cert(certificate)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .http_status_as_error(false)
            .user_agent("linkerd2-cni-tests")
            .timeout_global(Some(REQUEST));
        let server = cluster["server"].as_str().unwrap().to_owned();
        Api { http: config.build().new_agent(), server, token }
    }

    pub fn get(&self, path: &str) -> Result<Value, Error> {
        parse(&self.get_text(path)?)
    }

    /// Returns what is at the path of a log or of metrics, which are no JSON.
    pub fn get_text(&self, path: &str) -> Result<String, Error> {
        read_body(self.authorize(self.http.get(self.url(path))).call())
    }

    /// Creates an object. Fails if it has an unknown field, as kubectl does.
    pub fn create(&self, object: &Value) -> Result<Value, Error> {
        self.post(&format!("{}?fieldValidation=Strict", collection_of(object)), object)
    }

    pub fn post(&self, path: &str, object: &Value) -> Result<Value, Error> {
        let request = self.authorize(self.http.post(self.url(path)));
        let request = request.content_type("application/json");
        parse(&read_body(request.send(object.to_string()))?)
    }

    /// Changes the fields of an object that the JSON merge patch contains.
    pub fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value, Error> {
        let request = self.authorize(self.http.patch(self.url(path)));
        let request = request.content_type("application/merge-patch+json");
        parse(&read_body(request.send(patch.to_string()))?)
    }

    pub fn delete(&self, path: &str) -> Result<Value, Error> {
        parse(&read_body(self.authorize(self.http.delete(self.url(path))).call())?)
    }

    /// Deletes an object, and waits for its end.
    pub fn delete_and_wait(&self, path: &str) -> Result<(), Error> {
        self.delete(path)?;
        let (path, _options) = path.split_once('?').unwrap_or((path, ""));
        if becomes_true(DELETION, || self.is_missing(path)) {
            return Ok(());
        }
        Err(Error { code: None, text: format!("not deleted within {DELETION:?}") })
    }

    /// Whether the API server responds that there is nothing at the path.
    pub fn is_missing(&self, path: &str) -> bool {
        self.get(path).is_err_and(|error| error.code == Some(404))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    fn authorize<Any>(&self, request: RequestBuilder<Any>) -> RequestBuilder<Any> {
        // An API server that sends an error to a client of logs or metrics sends it as JSON.
        let request = request.header("Accept", "application/json, */*");
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }
}

fn kubeconfig() -> Value {
    yaml(&read(std::env::var_os("KUBECONFIG").expect("KUBECONFIG is set")))
}

fn decode(data: &Value) -> Vec<u8> {
    STANDARD.decode(data.as_str().expect("the kubeconfig has the data itself")).unwrap()
}

/// Returns the path of the objects of this kind in the object's namespace.
fn collection_of(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let root = if version.contains('/') { "apis" } else { "api" };
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let kinds = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{kinds}"),
        None => format!("/{root}/{version}/{kinds}"),
    }
}

/// Returns the body of a response. Fails unless the status is a success.
fn read_body(response: Result<Response<Body>, ureq::Error>) -> Result<String, Error> {
    let mut response = response.map_err(no_response)?;
    let body = response.body_mut().with_config().limit(BODY_LIMIT);
    let text = body.read_to_string().map_err(no_response)?;
    if response.status().is_success() {
        return Ok(text);
    }
    let message = match serde_json::from_str::<Value>(&text) {
        Ok(status) => status["message"].as_str().unwrap_or(&text).to_owned(),
        Err(_) => text,
    };
    Err(Error { code: Some(response.status().as_u16()), text: message })
}

fn no_response(error: ureq::Error) -> Error {
    Error { code: None, text: error.to_string() }
}

fn parse(body: &str) -> Result<Value, Error> {
    serde_json::from_str(body).map_err(|error| Error { code: None, text: error.to_string() })
}
