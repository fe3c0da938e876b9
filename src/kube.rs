//! The Kubernetes API client. It blocks, and each phase of a request has a deadline.
//!
//! No other module of the product uses `ureq` or `rustls` outside tests. The client
//!
//! - does not follow redirects,
//! - ignores `HTTPS_PROXY`; upstream uses it, and a proxy that responds with 403 fails every pod
//!   (linkerd2#11286),
//! - puts no token into an error or a log line.
//!
//! All requests must end before the program enters a pod's netns, because the client connects from
//! the netns of the calling thread, and the API server is reached from the host's netns.

pub mod claims;
pub mod connection;
mod error;
pub mod event;
pub mod kubeconfig;
mod literal_address;
pub mod object_reader;
pub mod plain_http;
pub mod pod_events;
pub mod pod_list;
pub mod pod_watch;
pub mod redact;
pub mod request_metrics;
pub mod scheduling;
mod tls;
pub mod types;
pub mod watch_events;

use std::io::{BufRead, BufReader, Read as _};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{Error as HttpError, Method, Request, Response, header};
pub use ureq::unversioned::resolver::DefaultResolver as SystemResolver;
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::{Connector as _, TcpConnector};
use ureq::{Agent as HttpAgent, AsSendBody, Body};

use crate::deadline::Deadline;
pub use error::{CONFLICT, Error, FORBIDDEN, NOT_FOUND, Retry, UNAUTHORIZED};
use kubeconfig::ApiAccess;
pub use literal_address::LiteralAddress;
use tls::Tls;
use types::{ApiStatus, ObjectIdentity};

/// Largest object that is read, in bytes. No pod comes near this limit, because etcd accepts at
/// most 1.5 MB.
const BODY_LIMIT: u64 = 8 << 20;
/// Largest list that is read, in bytes: 500 pods of 256 KiB each. Lists are parsed while they
/// arrive ([`Client::read_list`]), so this limits time and traffic, not memory.
const LIST_LIMIT: u64 = 128 << 20;
/// Largest error response that is read, in bytes. Only its start is shown to users.
const ERROR_LIMIT: u64 = 64 << 10;

/// Buffer size for each direction of a connection, in bytes. ureq's default of 128 KiB would be a
/// tenth of a program's memory, so the buffers are smaller. They are still large enough for the
/// head of a request with its token.
const BUFFER: usize = 16 << 10;

/// Time-out of a response to the agent and the repair controller. The agent waits for a response
/// longer than for any other phase, because an overloaded API server queues requests, and a request
/// that is sent again waits at the end of the queue. Upstream's repair controller has the same
/// time-out.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(9);

/// Longest duration of each phase of one request. The whole request has a deadline only with
/// [`Client::with_deadline`], because ureq's resolver starts a thread for such a deadline, even if
/// the host is an IP address.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    pub connect: Duration,
    /// Limit of each of three phases: sending the head, sending the body, and waiting for the
    /// headers of the response.
    pub response: Duration,
    /// Limit for reading the body of the response. For a watch: the longest time between two
    /// events.
    pub body: Duration,
}

impl Deadlines {
    pub fn per_phase(phase: Duration) -> Self {
        Deadlines { connect: phase, response: phase, body: phase }
    }
}

/// A client of one API server with one credential. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: HttpAgent,
    server: String,
    token: Option<String>,
    body_timeout: Duration,
    /// When the client's requests fail at the latest, see [`Client::with_deadline`].
    deadline: Option<Deadline>,
}

/// Which time-outs apply to a response.
#[derive(Clone, Copy)]
enum ResponseKind {
    /// The API server sends the response at once, and ends it.
    Complete,
    /// The API server sends events until the watch ends.
    Watch,
}

impl Client {
    /// Makes a client without connecting to the API server, whose audit log will show `user_agent`.
    /// Fails if the CA is invalid.
    pub fn new<R: Resolver + Default>(
        access: &ApiAccess,
        user_agent: &str,
        deadlines: Deadlines,
    ) -> Result<Self, Error> {
        let config = HttpAgent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .user_agent(format!("{user_agent}/{}", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(deadlines.connect))
            .timeout_send_request(Some(deadlines.response))
            .timeout_send_body(Some(deadlines.response))
            .timeout_recv_response(Some(deadlines.response))
            .timeout_recv_body(Some(deadlines.body))
            .build();
        let connector = ().chain(TcpConnector::default()).chain(Tls::new(access)?);
        Ok(Client {
            http: HttpAgent::with_parts(config, connector, R::default()),
            server: access.server.trim_end_matches('/').to_owned(),
            token: access.token.clone(),
            body_timeout: deadlines.body,
            deadline: None,
        })
    }

    /// Sets a deadline at which each request fails if it has not ended before. A watch has no such
    /// deadline. Only for clients with [`LiteralAddress`], which needs no thread to keep the
    /// deadline.
    pub fn with_deadline(self, deadline: Deadline) -> Self {
        Client { deadline: Some(deadline), ..self }
    }

    /// GETs `path` (absolute, with its query, e.g. `/api/v1/nodes/a`).
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.read_object(Method::GET, path, None)
    }

    /// Like [`Client::get`], for the object of this kind whose name is the last segment of `path`.
    /// Fails if the response is another object: a proxy in front of the API server may also respond
    /// with HTTP 200 and JSON. Whoever concludes something from a success has to call this function.
    pub fn get_object<T: DeserializeOwned>(&self, path: &str, kind: &str) -> Result<T, Error> {
        let (request, bytes) = self.read_body(Method::GET, path, None)?;
        let found: ObjectIdentity = decode(&request, &bytes)?;
        let name = object_name(path);
        if found.kind != kind || found.metadata.name != name {
            let problem = format!("another object instead of {kind} {name}");
            return Err(Error::Decode { request, problem, is_truncated: false });
        }
        decode(&request, &bytes)
    }

    /// GETs a list and returns a reader of the response, so that a long list is never in memory
    /// as a whole. Reading fails after 128 MiB or after [`Deadlines::body`].
    pub fn read_list(&self, path: &str) -> Result<impl BufRead + use<>, Error> {
        let response = self.send(Method::GET, path, None, ResponseKind::Complete)?;
        let body = response.into_body().into_with_config().limit(LIST_LIMIT);
        Ok(BufReader::new(body.reader()))
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<(), Error> {
        self.change(Method::POST, path, body)
    }

    pub fn post_and_decode<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, Error> {
        self.read_object(Method::POST, path, Some(body))
    }

    /// Changes the fields of an object that the JSON merge patch `body` contains. If one of them is
    /// `metadata.resourceVersion`, the API server responds with 409 if the object has changed since
    /// that version.
    pub fn merge_patch(&self, path: &str, body: &Value) -> Result<(), Error> {
        self.change(Method::PATCH, path, body)
    }

    pub fn delete(&self, path: &str, body: &Value) -> Result<(), Error> {
        self.change(Method::DELETE, path, body)
    }

    /// Sends a request that changes an object. Fails unless the response is an API object, such as
    /// the changed object or a Status: the success of a proxy in front of the API server changes
    /// nothing.
    fn change(&self, method: Method, path: &str, body: &Value) -> Result<(), Error> {
        let (request, bytes) = self.read_body(method, path, Some(body))?;
        let found: ObjectIdentity = decode(&request, &bytes)?;
        if found.kind.is_empty() {
            let problem = "no API object".to_owned();
            return Err(Error::Decode { request, problem, is_truncated: false });
        }
        Ok(())
    }

    /// Starts a watch. Each line of the returned reader is one JSON event. The watch ends when the
    /// server ends it, or when no event arrives for [`Deadlines::body`].
    pub fn watch(&self, path: &str) -> Result<impl BufRead + use<>, Error> {
        let response = self.send(Method::GET, path, None, ResponseKind::Watch)?;
        Ok(BufReader::new(response.into_body().into_reader()))
    }

    /// Sends a request, and counts it in the metrics. Fails unless the response's status is a
    /// success.
    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        kind: ResponseKind,
    ) -> Result<Response<Body>, Error> {
        let url = format!("{}{path}", self.server);
        let request = format!("{method} {url}");
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut builder =
            Request::builder().method(method).uri(url).header(header::ACCEPT, "application/json");
        if let Some(token) = &self.token {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = match body {
            Some(body) => {
                let builder = builder.header(header::CONTENT_TYPE, content_type);
                self.send_with_timeouts(builder.body(body.to_string()), kind)
            }
            None => self.send_with_timeouts(builder.body(()), kind),
        };
        let response = match response {
            Ok(response) => response,
            Err(source) => {
                request_metrics::count(None);
                return Err(Error::Transport { request, source });
            }
        };
        request_metrics::count(Some(response.status().as_u16()));
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.status_error(request, response))
    }

    /// Converts a response with the status of a failure to an error with the API server's message.
    fn status_error(&self, request: String, mut response: Response<Body>) -> Error {
        let code = response.status().as_u16();
        let retry_after = retry_after(&response);
        let mut bytes = Vec::new();
        // The status code is what matters, so a truncated message is good enough.
        let _ = response.body_mut().as_reader().take(ERROR_LIMIT).read_to_end(&mut bytes);
        let ApiStatus { kind, reason, message, .. } =
            redact::decode_object(&bytes).unwrap_or_default();
        // A proxy may respond with other JSON that has a `reason`.
        let reason = if kind == "Status" { Some(reason.unwrap_or_default()) } else { None };
        let text = message.unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned());
        let message = redact::redact_message(&text, self.token.as_deref());
        Error::Status { request, code, reason, message, retry_after }
    }

    /// Sends the request with the time-outs for this kind of response.
    fn send_with_timeouts<B: AsSendBody>(
        &self,
        request: Result<Request<B>, HttpError>,
        kind: ResponseKind,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self.http.configure_request(request?);
        let request = match kind {
            ResponseKind::Complete => {
                request.timeout_global(self.deadline.map(Deadline::remaining))
            }
            ResponseKind::Watch => {
                request.timeout_recv_body(None).timeout_per_read(Some(self.body_timeout))
            }
        };
        self.http.run(request.build())
    }

    /// Sends a request, and decodes the object in the response.
    fn read_object<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let (request, bytes) = self.read_body(method, path, body)?;
        decode(&request, &bytes)
    }

    /// Sends a request. Returns its method and URL, and the body of the response.
    fn read_body(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(String, Vec<u8>), Error> {
        let request = format!("{method} {}{path}", self.server);
        let mut response = self.send(method, path, body, ResponseKind::Complete)?;
        match response.body_mut().with_config().limit(BODY_LIMIT).read_to_vec() {
            Ok(bytes) => Ok((request, bytes)),
            Err(source) => Err(Error::Transport { request, source }),
        }
    }
}

/// Decodes the object in the response to `request`.
fn decode<T: DeserializeOwned>(request: &str, bytes: &[u8]) -> Result<T, Error> {
    match redact::decode_object(bytes) {
        Ok(object) => Ok(object),
        Err(error) => Err(Error::Decode {
            request: request.to_owned(),
            problem: redact::describe_json_error(&error),
            is_truncated: error.is_eof(),
        }),
    }
}

/// Returns the name of the object at `path`: the last segment, without the query.
pub fn object_name(path: &str) -> &str {
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    match path.rsplit_once('/') {
        Some((_, name)) => name,
        None => path,
    }
}

/// Returns the wait in the header `Retry-After`. `None` if the header is missing or not in seconds.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?;
    let seconds = value.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
