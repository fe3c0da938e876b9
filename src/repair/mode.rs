//! The repair mode: how the controller handles a pod without redirect rules.

use std::str::FromStr;

/// Value of `repairController.mode` in the chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairMode {
    /// Delete the pod, so that its owner creates another pod. Upstream's behavior.
    #[default]
    Delete,
    /// Install the redirect rules in the pod's netns.
    InPlace,
    /// Label the pod, so that another controller can act on it.
    Label,
    /// Only report the pod, in log, metrics and Events.
    Report,
}

impl FromStr for RepairMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // An empty environment variable counts as unset.
            "" | "delete" => Ok(RepairMode::Delete),
            "in-place" => Ok(RepairMode::InPlace),
            "label" => Ok(RepairMode::Label),
            "report" => Ok(RepairMode::Report),
            _ => Err(format!("\"{text}\" is not one of delete, in-place, label and report")),
        }
    }
}
