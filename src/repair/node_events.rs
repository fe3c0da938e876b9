//! Events on the node about what an audit found: pods with drift, and suspended repairs.

use super::attempt::Error;
use crate::config::Config;
use crate::kube::connection::Connection;
use crate::kube::event::{self, EventContent, EventType, Regarding, Reporter};

/// Posts the Events, each once: drift for each plugin entry, and each suspension of repairs.
pub struct NodeEvents {
    pub reporter: Reporter,
    /// Name of the node.
    pub node: String,
    /// The plugin entry for which drift was reported.
    drift_reported: Option<Config>,
    suspension_reported: bool,
}

impl NodeEvents {
    pub fn new(reporter: Reporter, node: String) -> Self {
        NodeEvents { reporter, node, drift_reported: None, suspension_reported: false }
    }

    /// Reports that `pods` pods have drift, unless that was reported for this `config`.
    pub fn report_drift(
        &mut self,
        connection: &mut Connection,
        pods: usize,
        config: Config,
    ) -> Result<(), Error> {
        if pods == 0 || self.drift_reported.as_ref() == Some(&config) {
            return Ok(());
        }
        let note = format!(
            "{pods} running pods have redirect rules of other chart values or annotations than \
             today's, and keep them; to apply today's, restart the pods"
        );
        tracing::info!("{note}");
        self.post(connection, EventType::Normal, "LinkerdCNIRulesDrifted", note)?;
        self.drift_reported = Some(config);
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
            self.post(connection, EventType::Warning, "LinkerdCNIRepairsSuspended", note)?;
            self.suspension_reported = true;
        }
        Ok(())
    }

    fn post(
        &self,
        connection: &mut Connection,
        kind: EventType,
        reason: &'static str,
        note: String,
    ) -> Result<(), Error> {
        let content = EventContent { kind, reason, action: "Reporting", note };
        let node = Regarding::node(&self.node);
        Ok(event::publish(&connection.client()?, &self.reporter, node, &content)?)
    }
}
