//! Follows the node's meshed pods: lists them, watches them from there, and goes on
//! where a watch ended. Finds; never acts.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Shared;
use super::answer::{self, Event, Page};
use super::backoff::Backoff;
use super::connection::{self, Connection};
use super::verdict::Stranded;
use crate::kube;

/// How long a list's pods may wait for room in the queue, all together. The pods of
/// a watch do not: their next failure is another event.
const ROOM: Duration = Duration::from_secs(30);

/// How long to watch at least before pods that were found and not dealt with have all
/// pods listed again. An act that is always refused would have us list without pause.
const LIST_AGAIN: Duration = Duration::from_secs(60);

/// Pods of one page.
const PAGE: u16 = 500;

/// A watch that ends sooner and has brought nothing is a failure; otherwise a server
/// that closes each watch at once would be asked without pause.
const SHORT: Duration = Duration::from_secs(1);

/// The one that watches.
pub struct Watch {
    pub connection: Connection,
    pub node: String,
    pub shared: Arc<Shared>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("the API server's answer broke off or is not what the API promises: {}", kube::answer::problem(.0))]
    Answer(#[from] serde_json::Error),
    #[error("the API server ended the watch: {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("the API server ended the watch at once")]
    Short,
}

impl Error {
    /// Whether the pods' history no longer reaches back to where we were.
    fn is_expired(&self) -> bool {
        match self {
            Error::Request(error) => error.code() == Some(410),
            // Whatever the server says inside a watch, a new list is the cure.
            Error::Refused { .. } => true,
            _ => false,
        }
    }
}

impl Watch {
    /// Never ends; it keeps nothing that would have to be put in order at the end.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut backoff = Backoff::default();
        let mut version = None;
        let mut listed = Instant::now();
        loop {
            let mut fruitful = false;
            let lists = version.is_none();
            let result = self.round(&mut version, &mut fruitful);
            if lists {
                listed = Instant::now();
            }
            if fruitful {
                backoff.reset();
            }
            // A pod that was found and not dealt with may have no next event for minutes,
            // and where every watch breaks off, none ever ends well.
            if !lists && (result.is_ok() || listed.elapsed() >= LIST_AGAIN) {
                version = version.filter(|_| !shared.missed.swap(false, Relaxed));
            }
            let Err(error) = result else { continue };
            if error.is_expired() {
                version = None;
            }
            let wait = backoff.lengthen();
            shared.metrics.watch_errors.increment();
            shared.health.trouble(error.to_string());
            tracing::warn!(err = %error, "Cannot watch the pods of this node; next try in {wait:.1?}");
            thread::sleep(wait);
        }
    }

    /// One list, or one watch from `version` on, which then is where the next begins.
    fn round(&mut self, version: &mut Option<String>, fruitful: &mut bool) -> Result<(), Error> {
        let Some(from) = version else {
            *version = Some(self.list()?);
            return Ok(());
        };
        self.watch(from, fruitful)
    }

    fn list(&mut self) -> Result<String, Error> {
        let mut token = String::new();
        let room = Instant::now() + ROOM;
        loop {
            let path = list_path(&self.node, PAGE, &token);
            let answer = self.connection.client()?.read(&path)?;
            let Page { metadata, items } = answer::page(answer)?;
            for pod in items {
                self.hand_over(pod, room);
            }
            if metadata.continue_token.is_empty() {
                self.shared.health.listed();
                return Ok(metadata.resource_version);
            }
            token = metadata.continue_token;
        }
    }

    fn watch(&mut self, version: &mut String, fruitful: &mut bool) -> Result<(), Error> {
        let path = watch_path(&self.node, version);
        let answer = self.connection.client()?.watch(&path)?;
        let began = Instant::now();
        self.shared.health.heard();
        for event in answer::events(answer) {
            let seen = match event? {
                Event::Error { code, message } => return Err(Error::Refused { code, message }),
                Event::Other { version } => version,
                Event::Pod { version, stranded } => {
                    if let Some(pod) = stranded {
                        self.hand_over(pod, Instant::now());
                    }
                    version
                }
            };
            *version = seen;
            *fruitful = true;
            self.shared.health.heard();
            if began.elapsed() >= LIST_AGAIN && self.shared.missed.load(Relaxed) {
                return Ok(());
            }
        }
        *fruitful |= began.elapsed() >= SHORT;
        fruitful.then_some(()).ok_or(Error::Short)
    }

    fn hand_over(&self, pod: Stranded, deadline: Instant) {
        if pod.is_elsewhere(&self.node) {
            return;
        }
        tracing::debug!(
            namespace = pod.namespace,
            name = pod.name,
            "Pod is stranded"
        );
        if self.shared.queue.give(pod, deadline).is_err() {
            self.shared.metrics.queue_overflow.increment();
            self.shared.missed.store(true, Relaxed);
        }
    }
}

/// Meshed pods of all namespaces on the node.
pub(super) fn list_path(node: &str, page: u16, token: &str) -> String {
    let path = format!("/api/v1/pods?{}&limit={page}", selectors(node));
    match token {
        "" => path,
        token => format!("{path}&continue={}", encode(token)),
    }
}

fn watch_path(node: &str, version: &str) -> String {
    format!(
        "/api/v1/pods?{}&watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={}",
        selectors(node),
        encode(version)
    )
}

fn selectors(node: &str) -> String {
    let field = encode(&format!("spec.nodeName={node}"));
    let label = encode("linkerd.io/control-plane-ns");
    format!("fieldSelector={field}&labelSelector={label}")
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_ask_for_the_nodes_meshed_pods_only() {
        let selectors = "fieldSelector=spec%2EnodeName%3Dnode%2D1\
                         &labelSelector=linkerd%2Eio%2Fcontrol%2Dplane%2Dns";
        let list = format!("/api/v1/pods?{selectors}&limit=500");
        assert_eq!(list_path("node-1", 500, ""), list);
        let next = format!("{list}&continue=a%3D%26b");
        assert_eq!(list_path("node-1", 500, "a=&b"), next);
        let watch = format!(
            "/api/v1/pods?{selectors}&watch=true&allowWatchBookmarks=true&timeoutSeconds=290\
             &resourceVersion=42"
        );
        assert_eq!(watch_path("node-1", "42"), watch);
    }
}
