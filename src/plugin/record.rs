//! One record of what was done for a pod, for the agent's log: `kubectl logs` shows it
//! where otherwise only the node's journal would.

use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::cni::Error;
use crate::firewall::Backend;

/// The agent's socket, beside the kubeconfig.
const SOCKET: &str = ".linkerd-cni.sock";
/// The longest message of an error that is sent, in bytes; the socket takes 8 KiB.
const MESSAGE_LIMIT: usize = 4096;

/// No token, annotation value or environment is in it.
#[derive(Debug, Default, Serialize)]
pub struct Record {
    pub level: &'static str,
    pub command: &'static str,
    pub namespace: String,
    pub pod: String,
    pub container_id: String,
    /// `redirected`, `checked`, `failed`, or why the pod passed untouched.
    pub decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Requests to the API server.
    pub requests: u32,
    pub ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

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
    pub fn finish(&mut self, error: Option<&Error>, took: Duration) {
        self.ms = took.as_millis().try_into().unwrap_or(u64::MAX);
        self.level = "info";
        if let Some(error) = error {
            self.level = "error";
            self.decision = "failed";
            self.error = Some(Failure {
                code: error.code,
                msg: error.msg.chars().take(MESSAGE_LIMIT / 4).collect(),
            });
        }
    }

    /// Sends the record to the agent, if it listens, and never waits for it: a full
    /// socket or none loses the record, not the pod.
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
