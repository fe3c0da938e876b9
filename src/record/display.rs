//! The record as a line of the agent's log.

use std::fmt;

use super::{CallResult, Command, Degraded, Failure, Record};
use crate::config::ignored;

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::Add => "ADD",
            Command::Check => "CHECK",
        })
    }
}

impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallResult::Redirected => "redirected",
            CallResult::Checked => "checked",
            CallResult::Simulated => "simulated",
            CallResult::Failed => "failed",
            CallResult::Skipped(reason) => reason,
        })
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
        if let Some(ignored) = ignored::summary(&self.ignored) {
            write!(f, "; {ignored}")?;
        }
        if !self.blocked_init_containers.is_empty() {
            let names = self.blocked_init_containers.join(", ");
            write!(
                f,
                "; init containers without network, as they start before the proxy: {names}"
            )?;
        }
        if !self.exempt_containers.is_empty() {
            let names = self.exempt_containers.join(", ");
            write!(f, "; containers that run as the proxy's user and bypass the proxy: {names}")?;
        }
        if self.ipv6_bypasses_proxy {
            write!(f, "; IPv6 traffic bypasses the proxy, which listens on IPv4 only")?;
        }
        if let Some(degraded) = self.degraded_text() {
            write!(f, "; {degraded}")?;
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.msg, self.code)
    }
}

impl Record {
    /// Describes [`Record::degraded`].
    pub fn degraded_text(&self) -> Option<String> {
        let Degraded(error) = self.degraded.as_ref()?;
        let effect = match self.command {
            Command::Add => "annotations and plugin entry alone were used",
            Command::Check => "without proof whether redirect rules are missing",
        };
        Some(format!("{effect}: {error}"))
    }
}
