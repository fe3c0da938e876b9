//! The record of an ADD or CHECK, which the plugin sends to the agent. The agent logs and counts
//! the record, because the plugin's own log is only in the container runtime's log on the node.
//!
//! The record is one JSON datagram. Any process that can write to the socket can send records, so
//! [`Record::parse`] bounds each text, and replaces characters that would break a log line. Plugin
//! and agent may differ in version, so unknown fields, backends and sources are skipped. The plugin
//! shortens texts that a pod's author wrote, and counts what it leaves out, so that a record is
//! never too long to be sent.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::cni::args::{PodRef, is_name};
use crate::cni::request::is_identifier;
use crate::cni::{Command, Error};
use crate::config::ignored_ports::{self, Ignored};
use crate::failure::Failure;
use crate::pod::skip::SkipReason;
use crate::quote::one_line;
use crate::redirect::backend_order::Backend;

/// File name of the agent's socket in the directory that agent and plugin share.
const RUN_SOCKET_NAME: &str = "records.sock";
/// File name of the socket in the CNI net dir, for an agent that shares no other directory with the
/// plugin. No container runtime reads the file as a network config, because of its extension.
pub const SOCKET_NAME: &str = ".linkerd-cni.sock";
/// Largest record, in bytes.
pub const SIZE_LIMIT: usize = 8 << 10;
/// Longest container ID, in bytes.
const ID_LIMIT: usize = 253;
/// Longest error message and skip reason, in characters.
const TEXT_LIMIT: usize = 1024;
/// Largest number of blocked init containers, and of exempt containers, that a record names.
/// Further containers are only counted.
const CONTAINERS_LIMIT: usize = 10;
/// Cuts of a record that would be longer than [`SIZE_LIMIT`]. The first with which the record fits
/// is used.
const CUTS: [Cut; 3] = [
    Cut { elements: 3, characters: 300 },
    Cut { elements: 1, characters: 100 },
    Cut { elements: 0, characters: 50 },
];

/// How much of a long record is sent.
#[derive(Clone, Copy)]
struct Cut {
    /// Largest number of ignored elements in each list.
    elements: usize,
    /// Largest number of characters in each error message.
    characters: usize,
}

/// Returns the path of the socket of an agent that shares `run_dir` with the plugin, or else has
/// only the net dir.
pub fn socket_path(run_dir: Option<&Path>, net_dir: &Path) -> PathBuf {
    match run_dir {
        Some(run_dir) => run_dir.join(RUN_SOCKET_NAME),
        None => net_dir.join(SOCKET_NAME),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallResult {
    Redirected,
    Checked,
    #[default]
    Failed,
    /// Why the pod was skipped, in words for logs.
    #[serde(untagged)]
    Skipped(Cow<'static, str>),
}

impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Copy,
    Request,
    Annotations,
}

impl Source {
    pub const ALL: [Source; 3] = [Source::Copy, Source::Request, Source::Annotations];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Record of an ADD or CHECK of one pod. It has no token and no environment variable, and of the
/// annotations only the ignored elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub command: Command,
    pub namespace: String,
    pub pod: String,
    /// UID of the pod object. If the object was not read: the UID in `CNI_ARGS`, which some
    /// runtimes omit.
    pub pod_uid: String,
    pub container_id: String,
    #[serde(rename = "decision")]
    pub result: CallResult,
    /// Backend that installed the rules. `None` if no rules were installed, or by a backend that
    /// only a later version knows.
    #[serde(deserialize_with = "deserialize_known_word")]
    pub backend: Option<Backend>,
    /// Source that told the facts about the pod. `None` if the pod's name decided, if no source
    /// could tell them, or if only a later version knows the source.
    #[serde(deserialize_with = "deserialize_known_word")]
    pub source: Option<Source>,
    /// Number of API requests.
    pub requests: u32,
    /// How many of `requests` repeated a failed request.
    pub retries: u32,
    /// Duration of the call, in milliseconds.
    pub ms: u64,
    pub error: Option<CallError>,
    /// For ADD: why annotations and plugin entry decided without the API server. For CHECK: why it
    /// is not proven whether rules are missing.
    pub degraded: Option<CallError>,
    /// Elements of the pod's lists of ports and interfaces that have no effect.
    #[serde(deserialize_with = "deserialize_known_lists")]
    pub ignored: Vec<Ignored>,
    /// Init containers that start before the proxy, so that their connections are refused.
    pub blocked_init_containers: Vec<String>,
    /// Containers of the app that run as the proxy's user. Their connections bypass the proxy.
    pub exempt_containers: Vec<String>,
    /// Number of further blocked init containers, which the record does not name.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_blocked_init_containers: usize,
    /// Number of further exempt containers, which the record does not name.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_exempt_containers: usize,
    /// Whether the pod has an IPv6 address, but only IPv4 rules, because its proxy listens on IPv4
    /// only.
    pub ipv6_bypasses_proxy: bool,
}

/// A CNI error without the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg} (code {code})")]
pub struct CallError {
    pub code: u32,
    /// Name of the [`Failure`].
    #[serde(default)]
    failure: String,
    msg: String,
}

impl CallError {
    fn new(error: &Error) -> Self {
        let failure = error.failure.row();
        CallError {
            code: failure.code,
            failure: failure.name.into(),
            msg: limited_line(&error.msg),
        }
    }

    /// Returns the failure. `None` if this version does not know its code.
    pub fn failure(&self) -> Option<Failure> {
        Failure::find(self.code, &self.failure)
    }
}

impl Record {
    /// Starts the record of a call. Its result is [`CallResult::Failed`] until another one is set.
    pub fn new(command: Command, container_id: &str) -> Self {
        Record { command, container_id: container_id.to_owned(), ..Record::default() }
    }

    /// Sets name and UID of the pod.
    pub fn with_pod(self, pod: &PodRef) -> Self {
        let PodRef { namespace, name, uid } = pod.clone();
        Record { namespace, pod: name, pod_uid: uid, ..self }
    }

    /// Sets the result: the plugin installs no rules in the pod, for this reason.
    pub fn skipped(self, reason: SkipReason) -> Self {
        Record { result: CallResult::Skipped(reason.text().into()), ..self }
    }

    pub fn checked(self) -> Self {
        Record { result: CallResult::Checked, ..self }
    }

    pub fn redirected(self, backend: Backend) -> Self {
        Record { result: CallResult::Redirected, backend: Some(backend), ..self }
    }

    pub fn with_ignored(self, lists: Vec<Ignored>) -> Self {
        Record { ignored: ignored_ports::cut(lists), ..self }
    }

    pub fn with_containers(self, blocked: Vec<String>, exempt: Vec<String>) -> Self {
        let mut record =
            Record { blocked_init_containers: blocked, exempt_containers: exempt, ..self };
        record.limit_containers();
        record
    }

    /// Counts the containers beyond [`CONTAINERS_LIMIT`] instead of naming them.
    fn limit_containers(&mut self) {
        limit_names(&mut self.blocked_init_containers, &mut self.more_blocked_init_containers);
        limit_names(&mut self.exempt_containers, &mut self.more_exempt_containers);
    }

    /// Returns the names of the init containers that start before the proxy, comma-separated. Empty
    /// if there are none.
    pub fn blocked_names(&self) -> String {
        join_names(&self.blocked_init_containers, self.more_blocked_init_containers)
    }

    /// Returns the names of the containers that run as the proxy's user, comma-separated. Empty if
    /// there are none.
    pub fn exempt_names(&self) -> String {
        join_names(&self.exempt_containers, self.more_exempt_containers)
    }

    pub fn with_degraded(self, error: Option<&Error>) -> Self {
        Record { degraded: error.map(CallError::new), ..self }
    }

    /// Sets the result: the call failed with this error.
    pub fn with_error(self, error: &Error) -> Self {
        Record { result: CallResult::Failed, error: Some(CallError::new(error)), ..self }
    }

    pub fn with_duration(self, duration: Duration) -> Self {
        Record { ms: duration.as_millis().try_into().unwrap_or(u64::MAX), ..self }
    }

    /// Sends the record to the agent without waiting: to the socket in `run_dir`, or if no agent
    /// reads from that socket, to the one in `net_dir`, if the net dir is known. If the socket is
    /// full or missing, the record is lost, because the pod must not wait for the agent.
    pub fn send(&self, run_dir: &Path, net_dir: Option<&Path>) {
        let bytes = self.to_datagram();
        if let Err(error) = send_datagram(&bytes, run_dir, net_dir) {
            tracing::debug!("linkerd-cni: cannot send the plugin record to the agent: {error}");
        }
    }

    /// Serializes the record. Shortens texts that the pod's author wrote until the record fits, and
    /// counts the elements that are left out.
    fn to_datagram(&self) -> Vec<u8> {
        // Serializing cannot fail, because all maps in a record have text keys.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        for cut in CUTS {
            if bytes.len() <= SIZE_LIMIT {
                break;
            }
            let record = self.shorten(cut);
            bytes = serde_json::to_vec(&record).unwrap_or_default();
        }
        bytes
    }

    fn shorten(&self, cut: Cut) -> Record {
        let mut record = self.clone();
        record.ignored = ignored_ports::cut_to(record.ignored, cut.elements);
        for error in [&mut record.error, &mut record.degraded].into_iter().flatten() {
            error.msg = truncate(&error.msg, cut.characters);
        }
        record
    }

    /// Parses a record from the socket. `None` if it is too long or invalid. Bounds and cleans each
    /// text, and removes invalid names.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        if bytes.len() > SIZE_LIMIT {
            return None;
        }
        let mut record: Record = serde_json::from_slice(bytes).ok()?;
        let is_valid = matches!(record.command, Command::Add | Command::Check)
            && record.container_id.len() <= ID_LIMIT
            && is_identifier(&record.container_id)
            && is_name(&record.namespace)
            && is_name(&record.pod);
        if !is_valid {
            return None;
        }
        if !is_name(&record.pod_uid) {
            record.pod_uid.clear();
        }
        for names in [&mut record.blocked_init_containers, &mut record.exempt_containers] {
            names.retain(|name| is_name(name));
        }
        record.limit_containers();
        if let CallResult::Skipped(reason) = &mut record.result {
            *reason = limited_line(reason).into();
        }
        for error in [&mut record.error, &mut record.degraded].into_iter().flatten() {
            error.msg = limited_line(&error.msg);
        }
        Some(record)
    }

    /// Whether the code of `failure` is that of the record's error, with which the call failed or
    /// had to decide without the API server.
    pub fn has_code(&self, failure: Failure) -> bool {
        self.error.iter().chain(&self.degraded).any(|error| error.code == failure.code())
    }

    pub fn is_redirected_add(&self) -> bool {
        self.command == Command::Add && self.result == CallResult::Redirected
    }

    /// Returns the log's warnings about the pod: traffic that bypasses the proxy, ports that are
    /// ignored, and a source that was not available.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(summary) = ignored_ports::summary(&self.ignored) {
            warnings.push(summary);
        }
        let names = self.exempt_names();
        if !names.is_empty() {
            warnings.push(format!(
                "containers that run as the proxy's user and bypass the proxy: {names}"
            ));
        }
        if self.ipv6_bypasses_proxy {
            let warning = "IPv6 traffic bypasses the proxy, which listens on IPv4 only";
            warnings.push(warning.to_owned());
        }
        if let Some(error) = &self.degraded {
            let problem = if self.command == Command::Check {
                "the plugin could not prove whether redirect rules are missing"
            } else {
                "the plugin used only the annotations and the plugin entry"
            };
            warnings.push(format!("{problem}: {error}"));
        }
        warnings
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { command, namespace, pod, container_id, result, .. } = self;
        write!(f, "linkerd-cni: {command} {namespace}/{pod} container {container_id}: {result}")?;
        if let Some(backend) = self.backend {
            write!(f, " by {backend}")?;
        }
        write!(f, ", {} requests, {} ms", self.requests, self.ms)?;
        if let Some(source) = self.source {
            write!(f, ", source {source}")?;
        }
        let names = self.blocked_names();
        if !names.is_empty() {
            let note = "init containers without network, as they start before the proxy";
            write!(f, "; {note}: {names}")?;
        }
        for warning in self.warnings() {
            write!(f, "; {warning}")?;
        }
        if let Some(error) = &self.error {
            write!(f, ": {error}")?;
        }
        Ok(())
    }
}

/// A list of ignored elements as another version of the plugin may send it.
#[derive(Deserialize)]
struct ReceivedList {
    source: String,
    elements: Vec<String>,
    #[serde(default)]
    more: usize,
}

/// Reads the lists whose source this agent knows, one per source and cut to a bounded length.
/// Skips unknown sources, because a later plugin version may send them.
fn deserialize_known_lists<'de, D: Deserializer<'de>>(field: D) -> Result<Vec<Ignored>, D::Error> {
    let received_lists = Vec::<ReceivedList>::deserialize(field)?;
    let mut lists = Vec::new();
    for source in ignored_ports::sources() {
        if let Some(list) = received_lists.iter().find(|list| list.source == source) {
            lists.push(Ignored { source, elements: list.elements.clone(), more: list.more });
        }
    }
    Ok(ignored_ports::cut(lists))
}

/// Decodes a word, such as the name of a backend. `None` for a word that this version does not
/// know, because a later plugin version may send it.
fn deserialize_known_word<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    field: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(field)?;
    Ok(serde_json::from_value(value).ok())
}

/// Removes the names beyond [`CONTAINERS_LIMIT`], and adds their number to `more`.
fn limit_names(names: &mut Vec<String>, more: &mut usize) {
    let removed = names.len().saturating_sub(CONTAINERS_LIMIT);
    *more = more.saturating_add(removed);
    names.truncate(CONTAINERS_LIMIT);
}

/// Joins names, and appends the number of names that are left out.
fn join_names(names: &[String], left_out: usize) -> String {
    let mut text = names.join(", ");
    if left_out > 0 {
        let comma = if text.is_empty() { "" } else { ", " };
        text.push_str(&format!("{comma}{left_out} more"));
    }
    text
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn send_datagram(bytes: &[u8], run_dir: &Path, net_dir: Option<&Path>) -> io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let result = socket.send_to(bytes, run_dir.join(RUN_SOCKET_NAME));
    let Some(net_dir) = net_dir else {
        return result;
    };
    match result {
        // No agent reads from the socket in the run dir.
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            socket.send_to(bytes, net_dir.join(SOCKET_NAME))
        }
        result => result,
    }
}

/// Returns the first `characters` of a text. An ellipsis shows that the text was longer.
fn truncate(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the text on one line, cut to [`TEXT_LIMIT`].
fn limited_line(text: &str) -> String {
    one_line(text).chars().take(TEXT_LIMIT).collect()
}

#[cfg(test)]
mod tests;
