//! The repair mode `in-place`: installs the missing rules in the pod's netns.

use std::error::Error;

use crate::firewall::{self, RulesState, describe_missing};
use crate::redirect::RuleSpec;
use crate::repair::find::inspect::{Inspected, NETNS_TIMEOUT};

/// Installs the missing rules, or today's rules in place of drifted rules, and reads them back to
/// verify them. Always uses the native backend, whatever `iptablesMode` is, because the
/// controller's container lacks the host's iptables.
pub fn install_rules(inspected: &Inspected) -> Result<(), Box<dyn Error>> {
    let (RulesState::Missing(spec, _) | RulesState::Drifted(spec)) = &inspected.rules else {
        return Ok(());
    };
    let spec = spec.clone();
    let installed = inspected.netns.run(NETNS_TIMEOUT, move || install_and_read(&spec))??;
    check_installed(&installed)
}

/// Fails if rules are missing after the installation, or if that is unknown.
fn check_installed(rules: &RulesState) -> Result<(), Box<dyn Error>> {
    match rules {
        RulesState::Complete | RulesState::Drifted(_) => Ok(()),
        RulesState::Missing(_, missing) => {
            let missing = describe_missing(missing);
            Err(format!("redirect rules are still missing after installing them: {missing}").into())
        }
        RulesState::Unreadable => {
            Err("cannot verify the installed redirect rules: the network namespace has a table of \
                 iptables-legacy, or too many rules, which the repair controller cannot read"
                .into())
        }
    }
}

/// Installs the rules in the current netns, and returns their state.
fn install_and_read(spec: &RuleSpec) -> Result<RulesState, firewall::Error> {
    firewall::install_native(spec)?;
    firewall::rules_state(Some(spec))
}
