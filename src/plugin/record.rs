//! The record of an ADD or CHECK that the plugin sends to the agent. The agent logs it, so
//! that `kubectl logs` shows what would otherwise be in the node's journal only.

use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::cni::Error;
use crate::config::ignored::{self, Ignored};
use crate::firewall::Backend;

/// File name of the agent's socket, which is in the directory of the kubeconfig.
const SOCKET: &str = ".linkerd-cni.sock";
/// Longest error message that is sent, in bytes. The agent reads at most 8 KiB of a record.
const MESSAGE_LIMIT: usize = 4096;

/// What the plugin did for one pod. It has no token and no environment variable, and of the
/// annotations only the ignored elements.
#[derive(Debug, Default, Serialize)]
pub struct Record {
    pub level: &'static str,
    pub command: &'static str,
    pub namespace: String,
    pub pod: String,
    /// Empty if the API server was not asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    pub container_id: String,
    /// `redirected`, `simulated`, `checked`, `failed`, or why the pod was skipped.
    pub decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Number of requests to the API server.
    pub requests: u32,
    /// Duration of the command in milliseconds.
    pub ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Elements of the pod's port lists that have no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<Ignored>,
}

/// Code and message of a CNI error, without the remedy.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub code: u32,
    pub msg: String,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}/{} container {}: {}",
            self.command, self.namespace, self.pod, self.container_id, self.decision
        )?;
        if let Some(backend) = self.backend {
            write!(f, " by {backend}")?;
        }
        write!(f, ", {} requests, {} ms", self.requests, self.ms)
    }
}

impl Record {
    /// Records the ignored elements, cut so that the record fits the socket.
    pub fn ignore(&mut self, lists: Vec<Ignored>) {
        self.ignored = ignored::cut(lists);
    }

    /// Sets duration, level and error at the end of the command.
    pub fn finish(&mut self, error: Option<&Error>, duration: Duration) {
        self.ms = duration.as_millis().try_into().unwrap_or(u64::MAX);
        self.level = match self.ignored.is_empty() {
            true => "info",
            false => "warn",
        };
        if let Some(error) = error {
            self.level = "error";
            self.decision = "failed";
            self.error = Some(Failure {
                code: error.code,
                msg: error.msg.chars().take(MESSAGE_LIMIT / 4).collect(),
            });
        }
    }

    /// Sends the record to the agent without waiting. If the socket is full or missing, the
    /// record is lost and the pod is not affected.
    pub fn send(&self, kubeconfig: &Path) {
        let Some(dir) = kubeconfig.parent() else {
            return;
        };
        let Ok(bytes) = serde_json::to_vec(self) else {
            return;
        };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(&bytes, dir.join(SOCKET))
        });
        if let Err(error) = sent {
            tracing::debug!("linkerd-cni: the agent gets no record: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ignored::SOURCES;

    /// Largest record that the agent reads, in bytes.
    const RECORD_LIMIT: usize = 8 << 10;

    #[test]
    fn a_record_with_the_longest_ignored_elements_fits_the_socket() {
        let mut record = Record {
            namespace: "n".repeat(63),
            pod: "p".repeat(253),
            pod_uid: "u".repeat(36),
            container_id: "c".repeat(64),
            ..Record::default()
        };
        let list =
            |source| Ignored { source, elements: vec!["\u{1}".repeat(30_000); 100], more: 0 };
        record.ignore(SOURCES.into_iter().map(list).collect());
        record.finish(None, Duration::ZERO);
        let bytes = serde_json::to_vec(&record).unwrap();
        assert!(bytes.len() < RECORD_LIMIT, "{}", bytes.len());
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["level"], "warn");
        assert_eq!(value["ignored"][0]["elements"].as_array().unwrap().len(), 10);
        assert_eq!(value["ignored"][7]["more"], 100);
    }

    #[test]
    fn a_record_without_ignored_elements_has_no_such_field() {
        let mut record = Record::default();
        record.finish(None, Duration::ZERO);
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("ignored") && text.contains("info"), "{text}");
    }
}
