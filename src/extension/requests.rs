//! GET requests to the API server: for one object, and for lists, which are read in parts.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::objects::List;
use crate::deadline::Deadline;
use crate::kube::object_name;
use crate::kube::types::ObjectIdentity;
use crate::quote::one_line;

/// Largest number of objects in a part of a list.
const PART_SIZE: usize = 500;
/// Remedy for a kubectl that fails, or that cannot reach the API server.
const CHECK_KUBECTL: &str = "; check with kubectl version and the same --kubeconfig and --context";

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot run kubectl: {0}; install kubectl in a directory of PATH")]
    Start(String),
    #[error(
        "kubectl was stopped after {} s; check that the API server is reachable, and that no \
         credential plugin of the kubeconfig waits for input (log in with kubectl first)",
        .0.as_secs()
    )]
    Deadline(Duration),
    #[error("{message} ({reason}){}", remedy(.reason))]
    Status { reason: String, message: String },
    #[error("kubectl failed: {0}{CHECK_KUBECTL}")]
    Failed(String),
    #[error("not asked, as the time was up")]
    OutOfTime,
    #[error("{path}: unexpected response: {problem}")]
    Decode { path: String, problem: String },
}

/// Returns what a user can do about an error of the API server, after a semicolon.
fn remedy(reason: &str) -> &'static str {
    match reason {
        "Forbidden" => {
            "; grant this right to the user, or choose another user with --context or --as"
        }
        "Unauthorized" => "; log in again, or choose another user with --context",
        // `kubectl proxy` itself sends these statuses if the API server could not be reached or did
        // not respond, so kubectl has to be checked.
        "HTTP 500" | "HTTP 502" => CHECK_KUBECTL,
        _ => "",
    }
}

/// Sends GET requests to the API server. The trait has no other requests, because `linkerd cni`
/// changes nothing in the cluster. Tests use an API server in memory instead.
pub trait Api: Sync {
    /// Returns the body of the response for `path`, an absolute path with the query.
    fn body(&self, path: &str) -> Result<String, Error>;
}

/// An API to which no request is sent after `end`. This bounds the time of each command, even if
/// many responses are slow or a list has no end.
pub struct ApiUntil<'a> {
    pub api: &'a dyn Api,
    pub end: Deadline,
}

impl Api for ApiUntil<'_> {
    fn body(&self, path: &str) -> Result<String, Error> {
        if self.end.has_passed() {
            return Err(Error::OutOfTime);
        }
        self.api.body(path)
    }
}

/// GETs `path`, and decodes the JSON of the response.
pub fn get<T: DeserializeOwned>(api: &dyn Api, path: &str) -> Result<T, Error> {
    decode(path, &api.body(path)?)
}

/// Decodes the JSON of the response for `path`.
pub fn decode<T: DeserializeOwned>(path: &str, body: &str) -> Result<T, Error> {
    match serde_json::from_str(body) {
        Ok(object) => Ok(object),
        Err(error) => {
            Err(Error::Decode { path: path.to_owned(), problem: one_line(&error.to_string()) })
        }
    }
}

/// GETs the object whose name is the last segment of `path`. Fails if the response has another
/// name: a proxy in front of the API server may also respond with HTTP 200 and JSON.
pub fn get_object<T: DeserializeOwned>(api: &dyn Api, path: &str) -> Result<T, Error> {
    let body = api.body(path)?;
    let found: ObjectIdentity = decode(path, &body)?;
    if found.metadata.name != object_name(path) {
        let problem = "another object than the requested one".to_owned();
        return Err(Error::Decode { path: path.to_owned(), problem });
    }
    decode(path, &body)
}

/// Like [`get_object`]; `None` if the API server responds that the object does not exist.
pub fn get_optional<T: DeserializeOwned>(api: &dyn Api, path: &str) -> Result<Option<T>, Error> {
    match get_object(api, path) {
        Ok(object) => Ok(Some(object)),
        Err(Error::Status { reason, .. }) if reason == "NotFound" => Ok(None),
        Err(error) => Err(error),
    }
}

/// GETs all items of a list. Fails if a response is no list, which says nothing about the items.
pub fn get_list<T: DeserializeOwned>(
    api: &dyn Api,
    path: &str,
    query: &str,
) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    for_each_item(api, path, query, |item| items.push(item))?;
    Ok(items)
}

/// Calls `handle_item` for each item of a list. Only one part of the list is in memory at a time.
pub fn for_each_item<T: DeserializeOwned>(
    api: &dyn Api,
    path: &str,
    query: &str,
    mut handle_item: impl FnMut(T),
) -> Result<(), Error> {
    let mut continuation = String::new();
    loop {
        let part: List<T> = get(api, &format!("{path}?limit={PART_SIZE}&{query}{continuation}"))?;
        for item in part.items {
            handle_item(item);
        }
        let token = part.metadata.continue_token;
        if token.is_empty() {
            return Ok(());
        }
        continuation = format!("&continue={}", url_encode(&token));
    }
}

/// Encodes a value for the query of a URL.
pub fn url_encode(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::Value;

    use super::*;

    /// An API server whose lists have no end: each part names a next part.
    struct Endless(AtomicUsize);

    /// Number of parts after which the test fails instead of reading on.
    const PART_LIMIT: usize = 1000;

    impl Api for Endless {
        fn body(&self, _: &str) -> Result<String, Error> {
            assert!(self.0.fetch_add(1, Ordering::SeqCst) < PART_LIMIT, "asked after the end");
            Ok(r#"{"metadata":{"continue":"x"},"items":[]}"#.to_owned())
        }
    }

    /// An API server that sends this body to each request.
    struct Fixed(&'static str);

    impl Api for Fixed {
        fn body(&self, _: &str) -> Result<String, Error> {
            Ok(self.0.to_owned())
        }
    }

    #[test]
    fn only_the_requested_object_and_a_list_are_responses() {
        for (body, is_object, is_list) in [
            (r#"{"kind":"Namespace","metadata":{"name":"shop"}}"#, true, false),
            (r#"{"kind":"Namespace","metadata":{"name":"other"}}"#, false, false),
            (r#"{"kind":"Status","metadata":{},"status":"Success"}"#, false, false),
            (r#"{"message":"no route"}"#, false, false),
            (r#"{"kind":"PodList","metadata":{},"items":[]}"#, false, true),
            // Go may encode an empty list so.
            (r#"{"kind":"PodList","metadata":{},"items":null}"#, false, true),
        ] {
            let object = get_optional::<Value>(&Fixed(body), "/api/v1/namespaces/shop");
            assert_eq!(object.is_ok(), is_object, "{body}");
            let list = get_list::<Value>(&Fixed(body), "/api/v1/pods", "");
            assert_eq!(list.is_ok(), is_list, "{body}");
        }
    }

    #[test]
    fn no_request_is_sent_after_the_deadline() {
        let api = Endless(AtomicUsize::new(0));
        let expired = ApiUntil { api: &api, end: Deadline::after(Duration::ZERO) };
        let error = get_list::<Value>(&expired, "/x", "").unwrap_err();
        assert!(matches!(error, Error::OutOfTime), "{error}");
        assert_eq!(api.0.load(Ordering::SeqCst), 0);
        let in_time = ApiUntil { api: &api, end: Deadline::after(Duration::from_secs(3600)) };
        assert!(in_time.body("/x").is_ok());
    }
}
