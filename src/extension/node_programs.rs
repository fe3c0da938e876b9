//! What agent and repair controller do on a node, as far as it decides whether a pod without
//! redirect rules is noticed there. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::agents::is_ready;
use super::objects::{AGENT_CONTAINER, container_variable, items, text};

/// Name of the repair controller's container in the agents' pods.
const CONTROLLER: &str = "repair-controller";

/// When the repair controller in a pod of the agent compares the rules of running pods. The
/// greatest value compares most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audits {
    /// The pod has no repair controller.
    #[default]
    NoController,
    /// Without an interval, only mode `in-place` audits.
    Never,
    /// After the controller's start, until each pod of the node is known to have its rules.
    AfterStart,
    Periodic,
}

impl Audits {
    /// Reads the settings of the repair controller in a pod of the agent. Upstream's controller has
    /// none of these settings, and never audits.
    pub fn of(pod: &Value) -> Audits {
        let spec = &pod["spec"];
        let has_controller =
            items(&spec["containers"]).any(|container| container["name"] == CONTROLLER);
        if !has_controller {
            return Audits::NoController;
        }
        let seconds = controller_variable(spec, "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS");
        let has_interval = !matches!(seconds, "" | "0");
        if has_interval {
            return Audits::Periodic;
        }
        match controller_variable(spec, "LINKERD_CNI_REPAIR_CONTROLLER_MODE") {
            "in-place" => Audits::AfterStart,
            _ => Audits::Never,
        }
    }

    /// Returns why nobody compares the rules of running pods. `None` if there are audits.
    pub fn why_none(self) -> Option<&'static str> {
        match self {
            Audits::NoController => Some("no repair controller runs"),
            Audits::Never => Some(
                "the repair controller compares no rules: without \
                 repairController.auditIntervalSeconds, only mode in-place does",
            ),
            Audits::AfterStart | Audits::Periodic => None,
        }
    }
}

/// Returns an environment variable of the repair controller. Empty if it is missing.
fn controller_variable<'s>(spec: &'s Value, name: &str) -> &'s str {
    container_variable(spec, CONTROLLER, name).unwrap_or_default()
}

/// The programs in the agent's pods of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodePrograms {
    pub is_agent_ready: bool,
    pub is_controller_ready: bool,
    /// What the controllers that are ready do.
    pub audits: Audits,
    /// Whether an agent has `watchPods: false`. Without the node's copy of its pods, the plugin
    /// skips a pod without an annotation of a proxy.
    pub lacks_pod_copy: bool,
}

impl NodePrograms {
    /// Returns the programs by node. During a rollout, a node may have two pods of the agent, of
    /// which one ready pod is enough.
    pub fn by_node(agents: &[Value]) -> BTreeMap<String, NodePrograms> {
        let mut by_node: BTreeMap<String, NodePrograms> = BTreeMap::new();
        for pod in agents {
            let node = text(&pod["spec"]["nodeName"]).to_owned();
            by_node.entry(node).or_default().add(pod);
        }
        by_node
    }

    fn add(&mut self, pod: &Value) {
        let watches = container_variable(&pod["spec"], AGENT_CONTAINER, "LINKERD_CNI_WATCH_PODS");
        if watches == Some("false") {
            self.lacks_pod_copy = true;
        }
        // If a node is gone, Kubernetes makes only the pod not ready. Its containers keep the status
        // that the kubelet reported last.
        if !is_ready(pod) {
            return;
        }
        self.is_agent_ready = true;
        if is_controller_ready(pod) {
            self.is_controller_ready = true;
            self.audits = self.audits.max(Audits::of(pod));
        }
    }
}

fn is_controller_ready(pod: &Value) -> bool {
    let mut containers = items(&pod["status"]["containerStatuses"]);
    containers.any(|container| container["name"] == CONTROLLER && container["ready"] == true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_mode_in_place_or_an_interval_makes_a_repair_controller_audit() {
        for (mode, seconds, expected) in [
            ("in-place", "0", Audits::AfterStart),
            ("in-place", "600", Audits::Periodic),
            ("delete", "600", Audits::Periodic),
            ("delete", "0", Audits::Never),
            ("report", "0", Audits::Never),
            // Upstream's controller has neither variable.
            ("", "", Audits::Never),
        ] {
            let env = json!([
                {"name": "LINKERD_CNI_REPAIR_CONTROLLER_MODE", "value": mode},
                {"name": "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS", "value": seconds},
            ]);
            let pod = json!({"spec": {"containers": [{"name": CONTROLLER, "env": env}]}});
            assert_eq!(Audits::of(&pod), expected, "{mode} {seconds}");
        }
        let without = json!({"spec": {"containers": [{"name": AGENT_CONTAINER}]}});
        assert_eq!(Audits::of(&without), Audits::NoController);
    }
}
