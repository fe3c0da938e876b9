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

const GONE: &str = "Pod is gone or needs no repair";

const HAS_ALL_RULES: &str = "Pod has all its redirect rules";

/// A pod that needs a repair.
pub struct CheckedPod {
    pub pod: StrandedPod,
    /// Netns of the pod and state of its rules. `None` if the rules did not have to be read.
    pub inspected: Option<Inspected>,
}

impl CheckedPod {
    /// Returns the missing rules. Empty if no rule is missing, or if the rules were not read.
    pub fn missing_rules(&self) -> &[String] {
        let Some(inspected) = &self.inspected else { return &[] };
        match &inspected.rules {
            RulesState::Missing(_, missing) => missing,
            RulesState::Complete | RulesState::Drifted(_) | RulesState::Unreadable => &[],
        }
    }
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
    let is_found_by_validator = found.found.found_by == FoundBy::Validator;
    if is_found_by_validator && settings.mode == RepairMode::Delete {
        // The pod is not read again: the deletion names the found resourceVersion as a
        // precondition, so the API server rejects the deletion if the pod has changed since.
        return Ok(CheckedPod { pod: found.clone(), inspected: None });
    }
    let (pod, object) = read_again(connection, found)?;
    if is_found_by_validator && settings.mode == RepairMode::Report {
        return Ok(CheckedPod { pod, inspected: None });
    }
    let inspected = inspect(connection, settings, &pod, object, config?)?;
    Ok(CheckedPod { pod, inspected: Some(inspected) })
}

/// Reads the pod from the API server again, because the list, watch event or audit that found the
/// pod may be old by now. Fails if the pod is gone, was replaced by another pod of the same name,
/// or needs no repair any more.
fn read_again(
    connection: &mut Connection,
    found: &StrandedPod,
) -> Result<(StrandedPod, Pod), NotRepaired> {
    let object: Pod = match connection.client()?.get_object(&found.found.api_path(), "Pod") {
        Ok(object) => object,
        Err(error) if error.is_status(404, NOT_FOUND) => return Err(NotRepaired::Unneeded(GONE)),
        Err(error) => return Err(error.into()),
    };
    let Some(pod) = StrandedPod::from_object(&object, found.found.found_by) else {
        return Err(NotRepaired::Unneeded(GONE));
    };
    let is_same_pod = pod.found.uid == found.found.uid;
    if !is_same_pod {
        return Err(NotRepaired::Unneeded(GONE));
    }
    Ok((pod, object))
}

/// Reads the pod's rules. Fails if a repair cannot correct them.
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
    check_correctable(&inspected.rules, pod.found.found_by)?;
    Ok(inspected)
}

/// Succeeds only if a repair can correct the rules: if rules are missing, or if the validator
/// failed with rules that are complete but not those of today's values.
fn check_correctable(rules: &RulesState, found_by: FoundBy) -> Result<(), NotRepaired> {
    match rules {
        RulesState::Missing(..) => Ok(()),
        // Drifted rules alone need no repair. But a failed validator proves that they do not
        // redirect the traffic, so they are replaced by today's rules, which may redirect it.
        RulesState::Drifted(_) => match found_by {
            FoundBy::Validator => Ok(()),
            FoundBy::Audit => Err(NotRepaired::Unneeded(HAS_ALL_RULES)),
        },
        RulesState::Complete => match found_by {
            FoundBy::Validator => Err(NotRepaired::Complete),
            FoundBy::Audit => Err(NotRepaired::Unneeded(HAS_ALL_RULES)),
        },
        RulesState::Unreadable => Err(NotRepaired::impossible(UNREADABLE)),
    }
}
