//! The settings of the release that decide what the plugin does with a pod.

use serde_json::Value;

use super::agents::DAEMONSET;
use super::facts;
use super::objects::agent_variable;
use super::report::Problem;
use super::requests::{Api, get_optional};
use crate::config::Config;
use crate::kube::scheduling::daemonset_path;

pub struct Release {
    /// The plugin entry.
    pub config: Config,
    pub called_for: CalledFor,
}

/// The pods for which the plugin is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalledFor {
    EveryPod,
    /// The chart's value `chained` is `false`: Multus calls the plugin for the pods that name it in
    /// an annotation.
    AttachedPods,
    /// Why it is unknown which pods the plugin is called for.
    Unknown(String),
}

impl Release {
    /// Reads the settings of the release in `namespace`. Fails if the plugin entry cannot be read.
    pub fn read(api: &dyn Api, namespace: &str) -> Result<Release, Problem> {
        let config = facts::read_config(api, namespace)?;
        Ok(Release { config, called_for: read_called_for(api, namespace) })
    }
}

fn read_called_for(api: &dyn Api, namespace: &str) -> CalledFor {
    let name = format!("DaemonSet {namespace}/{DAEMONSET}");
    match get_optional::<Value>(api, &daemonset_path(namespace, DAEMONSET)) {
        Ok(Some(daemonset)) if is_called_by_multus(&daemonset) => CalledFor::AttachedPods,
        Ok(Some(_)) => CalledFor::EveryPod,
        Ok(None) => CalledFor::Unknown(format!("{name} does not exist")),
        Err(error) => CalledFor::Unknown(format!("cannot read {name}: {error}")),
    }
}

/// Returns whether the chart's value `chained` is `false`, so that Multus calls the plugin.
pub fn is_called_by_multus(daemonset: &Value) -> bool {
    agent_variable(daemonset, "LINKERD_CNI_CHAINED") == Some("false")
}
