//! The record of an ADD or CHECK, which the plugin sends to the agent. The agent logs and counts
//! the record, because the plugin's own log is only in the container runtime's log on the node.
//!
//! The record is one JSON datagram. Any process that can write to the socket can send records, so
//! [`Record::parse`] bounds each text, and replaces characters that would break a log line. Plugin
//! and agent may differ in version, so unknown fields and sources of ignored ports are skipped.

mod display;

use std::borrow::Cow;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::cni::Error;
use crate::cni::error::code;
use crate::config::ignored::{self, Ignored, SOURCES};
use crate::redirect::backend::Backend;

/// File name of the agent's socket in the CNI net dir. No container runtime reads it as a network
/// config, because of its extension.
pub const SOCKET_NAME: &str = ".linkerd-cni.sock";
/// Largest record, in bytes.
pub const SIZE_LIMIT: usize = 8 << 10;
/// Longest name of a pod, a Namespace or a container, in bytes.
const NAME_LIMIT: usize = 253;
/// Longest error message and skip reason, in characters.
const TEXT_LIMIT: usize = 1024;
/// Largest number of containers that a record names, of each kind.
const CONTAINERS_LIMIT: usize = 10;

/// Level at which the agent logs the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// `CNI_COMMAND` of the plugin call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    Add,
    Check,
}

/// Result of the plugin call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallResult {
    Redirected,
    Checked,
    Simulated,
    Failed,
    /// Why the pod was skipped, in words for logs.
    #[serde(untagged)]
    Skipped(Cow<'static, str>),
}

/// What the plugin did for one pod. It has no token and no environment variable, and of the
/// annotations only the ignored elements.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub level: Level,
    pub command: Command,
    pub namespace: String,
    pub pod: String,
    /// UID of the pod object, or else the UID in `CNI_ARGS`, which some runtimes omit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    container_id: String,
    #[serde(rename = "decision")]
    pub result: CallResult,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Number of requests to the API server.
    pub requests: u32,
    /// How many of these requests repeated a failed one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// Duration of the call, in milliseconds.
    pub ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// For ADD: why annotations and plugin entry decided without the API server. For CHECK: why it could
    /// not be proven whether rules are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<Degraded>,
    /// Elements of the pod's port lists that have no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "known")]
    pub ignored: Vec<Ignored>,
    /// Init containers that start before the proxy, so that their connections are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_init_containers: Vec<String>,
    /// Containers of the app that run as the user of the proxy, so that their connections bypass it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt_containers: Vec<String>,
    /// Whether the pod has IPv6, and IPv4 rules alone as its proxy listens on IPv4 only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ipv6_bypasses_proxy: bool,
}

/// Code and message of a CNI error, without the remedy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: u32,
    msg: String,
}

impl Failure {
    fn new(error: &Error) -> Self {
        Failure { code: error.code, msg: line(&error.msg) }
    }
}

/// See [`Record::degraded`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Degraded(pub Failure);

impl Record {
    /// Starts the record of a call. Its result is `Failed` until a result is set.
    pub fn new(command: Command, container_id: &str) -> Self {
        Record {
            level: Level::Info,
            command,
            namespace: String::new(),
            pod: String::new(),
            pod_uid: String::new(),
            container_id: container_id.to_owned(),
            result: CallResult::Failed,
            backend: None,
            requests: 0,
            retries: 0,
            ms: 0,
            error: None,
            degraded: None,
            ignored: Vec::new(),
            blocked_init_containers: Vec::new(),
            exempt_containers: Vec::new(),
            ipv6_bypasses_proxy: false,
        }
    }

    /// Records why the pod is skipped.
    pub fn skip(&mut self, reason: &'static str) {
        self.result = CallResult::Skipped(reason.into());
    }

    /// Records the ignored elements, cut so that the record stays below [`SIZE_LIMIT`].
    pub fn ignore(&mut self, lists: Vec<Ignored>) {
        self.ignored = ignored::cut(lists);
    }

    /// Records the containers without network and those that bypass the proxy, the first
    /// [`CONTAINERS_LIMIT`] of each.
    pub fn name_containers(&mut self, mut blocked: Vec<String>, mut exempt: Vec<String>) {
        blocked.truncate(CONTAINERS_LIMIT);
        exempt.truncate(CONTAINERS_LIMIT);
        self.blocked_init_containers = blocked;
        self.exempt_containers = exempt;
    }

    /// Records the `error` that left the call without the facts that it needs.
    pub fn degrade(&mut self, error: &Error) {
        self.degraded = Some(Degraded(Failure::new(error)));
    }

    /// Sets duration, level and error at the end of the call.
    pub fn finish(&mut self, error: Option<&Error>, duration: Duration) {
        self.ms = duration.as_millis().try_into().unwrap_or(u64::MAX);
        let has_bypass = self.ipv6_bypasses_proxy || !self.exempt_containers.is_empty();
        if !self.ignored.is_empty() || self.degraded.is_some() || has_bypass {
            self.level = Level::Warn;
        }
        if let Some(error) = error {
            self.level = Level::Error;
            self.result = CallResult::Failed;
            self.error = Some(Failure::new(error));
        }
    }

    /// Sends the record to the agent, whose socket is in the directory of `kubeconfig`, without
    /// waiting. If the socket is full or missing, the record is lost and the pod is not affected.
    pub fn send(&self, kubeconfig: &Path) {
        let Some(dir) = kubeconfig.parent() else {
            return;
        };
        let Ok(bytes) = serde_json::to_vec(self) else {
            return;
        };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(&bytes, dir.join(SOCKET_NAME))
        });
        if let Err(error) = sent {
            tracing::debug!("linkerd-cni: cannot send the plugin record to the agent: {error}");
        }
    }

    /// Parses a datagram. Returns `None` if it is not a record, is too large, or has an invalid
    /// name.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        if bytes.len() > SIZE_LIMIT {
            return None;
        }
        let mut record: Record = serde_json::from_slice(bytes).ok()?;
        let names = [&record.namespace, &record.pod, &record.container_id];
        if !names.into_iter().all(|name| is_name(name)) {
            return None;
        }
        if !is_name(&record.pod_uid) {
            record.pod_uid.clear();
        }
        for names in [&mut record.blocked_init_containers, &mut record.exempt_containers] {
            names.truncate(CONTAINERS_LIMIT);
            names.retain(|name| is_name(name));
        }
        if let CallResult::Skipped(reason) = &mut record.result {
            *reason = line(reason).into();
        }
        let degraded = record.degraded.as_mut().map(|Degraded(error)| error);
        for error in record.error.as_mut().into_iter().chain(degraded) {
            error.msg = line(&error.msg);
        }
        Some(record)
    }

    /// Returns the start of the log lines for ADD and CHECK of a pod.
    pub fn line_starts(namespace: &str, pod: &str) -> [String; 2] {
        [Command::Add, Command::Check]
            .map(|command| format!("linkerd-cni: {command} {namespace}/{pod} "))
    }

    /// Whether the API server rejected the plugin's token (HTTP 401) or denied its request (403).
    pub fn is_rejection(&self) -> bool {
        self.has_error(code::API_DENIED)
    }

    /// Whether the plugin could not reach the API server.
    pub fn is_unreachable(&self) -> bool {
        self.has_error(code::API_UNREACHABLE)
    }

    fn has_error(&self, code: u32) -> bool {
        let degraded = self.degraded.as_ref().map(|Degraded(error)| error);
        self.error.iter().chain(degraded).any(|error| error.code == code)
    }
}

/// Reads the lists whose source this agent knows, one per source and cut to a bounded length.
/// Skips unknown sources, because a later plugin version may send them.
fn known<'de, D: Deserializer<'de>>(field: D) -> Result<Vec<Ignored>, D::Error> {
    #[derive(Deserialize)]
    struct Sent {
        source: String,
        elements: Vec<String>,
        #[serde(default)]
        more: usize,
    }
    let sent = Vec::<Sent>::deserialize(field)?;
    let of = |source: &'static str| {
        let list = sent.iter().find(|list| list.source == source)?;
        Some(Ignored { source, elements: list.elements.clone(), more: list.more })
    };
    Ok(ignored::cut(SOURCES.into_iter().filter_map(of).collect()))
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Whether `text` has only characters that occur in names, and is not too long.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.len() <= NAME_LIMIT && text.bytes().all(fits)
}

/// Puts `text` on one line, and cuts it.
fn line(text: &str) -> String {
    let printed = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(TEXT_LIMIT).map(printed).collect()
}

#[cfg(test)]
mod tests;
