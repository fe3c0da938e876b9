//! Events on the node about what an audit found: pods with drift, and suspended repairs.

use super::attempt::Error;
use crate::kube::connection::Connection;
use crate::kube::event::{self, EventContent, EventType, Regarding, Reporter};

/// Posts the Events, each once: drift for each change of the values, and each suspension of repairs.
pub struct NodeEvents {
    pub reporter: Reporter,
    /// Name of the node.
    pub node: String,
    /// [`Config::rules_digest`](crate::config::Config::rules_digest) for which drift was reported.
    drift_reported: Option<u64>,
    suspension_reported: bool,
}

impl NodeEvents {
    pub fn new(reporter: Reporter, node: String) -> Self {
        NodeEvents { reporter, node, drift_reported: None, suspension_reported: false }
    }

    /// Reports that `pods` pods have drift, unless that was reported for values with this
    /// digest. During a rollout two repair controllers run on the node: the Event has one name.
    pub fn report_drift(
        &mut self,
        connection: &mut Connection,
        pods: usize,
        values: u64,
    ) -> Result<(), Error> {
        if pods == 0 || self.drift_reported == Some(values) {
            return Ok(());
        }
        let note = format!(
            "{pods} running pods have redirect rules of other chart values or annotations than \
             today's, and keep them; to apply today's, restart the pods"
        );
        tracing::info!("{note}");
        let content = content(EventType::Normal, "LinkerdCNIRulesDrifted", note);
        let (node, id) = (Regarding::node(&self.node), format!("linkerd-cni-drift-{values:x}"));
        event::publish(&connection.client()?, &self.reporter, node, &content, Some(&id))?;
        self.drift_reported = Some(values);
        Ok(())
    }

    /// Reports that `damaged` of the `compared` pods are damaged, unless that was reported. `None`:
    /// repairs are not suspended.
    pub fn report_suspension(
        &mut self,
        connection: &mut Connection,
        suspended: Option<(usize, usize)>,
    ) -> Result<(), Error> {
        let Some((damaged, compared)) = suspended else {
            self.suspension_reported = false;
            return Ok(());
        };
        let note = format!(
            "{damaged} of {compared} audited pods have missing or changed redirect rules; the audit \
             repairs none while these are more than half; check that the CNI plugin works on this \
             node, then restart the pods that the log names"
        );
        tracing::warn!("{note}");
        if !self.suspension_reported {
            let content = content(EventType::Warning, "LinkerdCNIRepairsSuspended", note);
            let node = Regarding::node(&self.node);
            event::publish(&connection.client()?, &self.reporter, node, &content, None)?;
            self.suspension_reported = true;
        }
        Ok(())
    }
}

fn content(kind: EventType, reason: &'static str, note: String) -> EventContent {
    EventContent { kind, reason, action: "Reporting", note }
}
