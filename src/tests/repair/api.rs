//! Routes of a fake API server with pods. Tests set its responses.

use serde_json::{Value, json};
use testkit::api::{self, ApiFault, Response, Routes};

pub use testkit::api::Request;

/// Message of the API server for an account without the permission to create evictions.
pub const NOT_PERMITTED: &str = r#"pods "web-1" is forbidden: User "system:serviceaccount:linkerd-cni:linkerd-cni" cannot create resource "pods/eviction" in API group "" in the namespace "emojivoto""#;

/// Message of the API server for an Event that exceeds a ResourceQuota.
const QUOTA: &str = r#"events "web-1.1" is forbidden: exceeded quota: events, requested: count/events.events.k8s.io=1, used: count/events.events.k8s.io=10, limited: count/events.events.k8s.io=10"#;

/// Response to one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Status(u16),
    /// Status code and message.
    Refusal(u16, &'static str),
    /// Status code and page of a proxy in front of the API server.
    Proxy(u16, &'static str),
    Fault(ApiFault),
}

pub type Api = api::Server<Pods>;

#[derive(Clone)]
pub struct Pods {
    /// Pods in the response to a list.
    pub pods: Vec<Value>,
    /// resourceVersion of a list.
    pub version: u64,
    pub list: Answer,
    pub watch: Answer,
    pub delete: Answer,
    pub event: Answer,
    /// Namespaces whose ResourceQuota admits no more Events.
    pub full_namespaces: Vec<String>,
    /// Response to evictions. By default they are forbidden, as with the RBAC rules of upstream's
    /// chart.
    pub evict: Answer,
    pub patch: Answer,
    /// The only accepted token. `None`: every token is accepted.
    pub token: Option<String>,
}

impl Default for Pods {
    fn default() -> Self {
        Pods {
            pods: Vec::new(),
            version: 100,
            list: Answer::Status(200),
            watch: Answer::Status(200),
            delete: Answer::Status(200),
            event: Answer::Status(201),
            full_namespaces: Vec::new(),
            evict: Answer::Refusal(403, NOT_PERMITTED),
            patch: Answer::Status(200),
            token: None,
        }
    }
}

impl Routes for Pods {
    const HAS_TLS: bool = false;

    fn respond(state: &mut api::State<Self>, request: &Request) -> Response {
        // Cut off the query. In a GET of one object, it only sets how fresh the object must be.
        let object = request.path.split('?').next().unwrap_or_default();
        let answer = match request.method.as_str() {
            _ if state.token.as_ref().is_some_and(|token| request.token() != token) => {
                Answer::Status(401)
            }
            "GET" => match fault(request) {
                Some(fault) => Answer::Refusal(400, fault),
                None if request.is_watch() => state.watch,
                None if request.is_list() => state.list,
                None => match state.answers.get(object) {
                    Some((code, object)) => return Response::new(*code, object),
                    None => Answer::Status(404),
                },
            },
            "PATCH" => state.patch,
            "POST" if request.is_eviction() => state.evict,
            "DELETE" => state.delete,
            _ if state.is_in_full_namespace(object) => Answer::Refusal(403, QUOTA),
            _ => state.event,
        };
        match answer {
            Answer::Status(200) if request.is_list() => {
                Response::new(200, state.list(&request.path))
            }
            Answer::Status(code) => Response::status(code),
            Answer::Refusal(code, message) => Response::refusal(code, message),
            Answer::Proxy(code, page) => Response::new(code, page),
            Answer::Fault(fault) => {
                Response { fault: Some(fault), ..Response::new(200, state.list(&request.path)) }
            }
        }
    }
}

impl Pods {
    /// Whether the path of a request to create an Event is in a namespace that admits no more.
    fn is_in_full_namespace(&self, path: &str) -> bool {
        self.full_namespaces.iter().any(|name| path.ends_with(&format!("/{name}/events")))
    }

    /// Returns the list of the pods that match the label selector of the request.
    fn list(&self, path: &str) -> Value {
        let selects_injected = path.contains("labelSelector=linkerd%2Eio%2Fcontrol%2Dplane%2Dns");
        let is_selected = |pod: &&Value| {
            !selects_injected
                || pod["metadata"]["labels"]["linkerd.io/control-plane-ns"].is_string()
        };
        json!({
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": self.pods.iter().filter(is_selected).collect::<Vec<_>>(),
        })
    }
}

/// Returns why a request is rejected. Rejects a list that the API server would serve from etcd, and
/// a watch that would end at the same time as the watches of other nodes.
fn fault(request: &Request) -> Option<&'static str> {
    let (_, query) = request.path.split_once('?')?;
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    if request.is_watch() {
        let time = value("timeoutSeconds").and_then(|time| time.parse::<u16>().ok());
        let is_right = time.is_some_and(|time| (1800..=3600).contains(&time));
        if !is_right {
            return Some("a watch without timeoutSeconds of 1800 to 3600");
        }
        return None;
    }
    if value("limit").is_some() || value("continue").is_some() {
        return Some("a list in pages");
    }
    if value("resourceVersion") != Some("0") {
        return Some("a GET that is not from the cache");
    }
    None
}
