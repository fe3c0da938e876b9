//! Checks whether a found pod needs a repair, and whether a repair would help the pod.

use std::error::Error;

use super::not_repaired::{self, NotRepaired};
use crate::config::Config;
use crate::firewall::RulesState;
use crate::kube::NOT_FOUND;
use crate::kube::connection::Connection;
use crate::kube::object_reader::ReadFrom;
use crate::kube::types::Pod;
use crate::pod::facts::object_facts;
use crate::repair::find::inspect::{Inspected, Inspector, UNREADABLE};
use crate::repair::find::plugin_config;
use crate::repair::find::stranded::{FoundBy, StrandedPod};
use crate::repair::settings::{RepairMode, Settings};

/// A pod that needs a repair.
pub struct CheckedPod {
    pub pod: StrandedPod,
    /// Netns of the pod and state of its rules. `None` if the rules did not have to be read.
    pub inspected: Option<Inspected>,
}

/// Checks that a found pod still needs a repair, and that a repair can help; fails otherwise. Reads
/// the pod again from the API server, and the rules in its netns, only where the repair mode and
/// the way in which the pod was found require that.
pub fn check(
    connection: &mut Connection,
    settings: &Settings,
    found: &StrandedPod,
) -> Result<CheckedPod, NotRepaired> {
    let config = plugin_config::read(&settings.net_dir());
    not_repaired::check_redirected(found, config.as_ref().ok())?;
    match (settings.mode, found.found.found_by) {
        // The pod is not read again: the deletion names the found resourceVersion as a
        // precondition, so the API server rejects the deletion if the pod has changed since.
        (RepairMode::Delete, FoundBy::Validator) => {
            Ok(CheckedPod { pod: found.clone(), inspected: None })
        }
        (RepairMode::Report, FoundBy::Validator) => {
            let (pod, _) = read_again(connection, found)?;
            Ok(CheckedPod { pod, inspected: None })
        }
        (RepairMode::InPlace, _) | (_, FoundBy::Audit) => {
            let (pod, object) = read_again(connection, found)?;
            let inspected = inspect(connection, settings, &pod, object, config?)?;
            Ok(CheckedPod { pod, inspected: Some(inspected) })
        }
    }
}

/// Reads the pod from the API server again, because the list, watch event or audit that found the
/// pod may be old by now. Fails if the pod is gone, was replaced by another pod of the same name,
/// or needs no repair any more.
fn read_again(
    connection: &mut Connection,
    found: &StrandedPod,
) -> Result<(StrandedPod, Pod), NotRepaired> {
    let gone = NotRepaired::Unneeded("Pod is gone or needs no repair");
    let object: Pod = match connection.client()?.get_object(&found.found.api_path(), "Pod") {
        Ok(object) => object,
        Err(error) if error.is_status(404, NOT_FOUND) => return Err(gone),
        Err(error) => return Err(error.into()),
    };
    match StrandedPod::from_object(&object, found.found.found_by) {
        Some(pod) if pod.found.uid == found.found.uid => Ok((pod, object)),
        _ => Err(gone),
    }
}

/// Reads the pod's rules. Succeeds only if a repair can correct them: if rules are missing, or if
/// the validator failed with rules that are complete but not those of today's values.
fn inspect(
    connection: &mut Connection,
    settings: &Settings,
    pod: &StrandedPod,
    object: Pod,
    config: Config,
) -> Result<Inspected, NotRepaired> {
    let mut inspector = Inspector::new(connection.client()?, config, settings, ReadFrom::Etcd);
    let facts = object_facts(object).map_err(Box::<dyn Error>::from)?;
    let Some(inspected) = inspector.inspect(pod, facts)? else {
        return Err(not_repaired::no_rules(pod, not_repaired::UNMESHED.to_owned()));
    };
    match (&inspected.rules, pod.found.found_by) {
        // Drifted rules alone need no repair. But a failed validator proves that they do not
        // redirect the traffic, so they are replaced by today's rules, which may redirect it.
        (RulesState::Missing(..), _) | (RulesState::Drifted(_), FoundBy::Validator) => {
            Ok(inspected)
        }
        (RulesState::Complete, FoundBy::Validator) => Err(NotRepaired::Complete),
        (RulesState::Complete | RulesState::Drifted(_), FoundBy::Audit) => {
            Err(NotRepaired::Unneeded("Pod has all its redirect rules"))
        }
        (RulesState::Unreadable, _) => Err(NotRepaired::impossible(UNREADABLE)),
    }
}
