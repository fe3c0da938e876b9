//! The repair mode `in-place`: installs the missing rules in the pod's netns.

use std::error::Error;

use super::inspect::{Inspected, NETNS_TIMEOUT};
use crate::firewall::{self, Survey, describe_missing};
use crate::netns;

/// Installs the missing rules, or today's rules in place of drifted rules, and reads them back.
/// Always uses the native backend, whatever `iptablesMode` is: this container lacks the host's
/// iptables.
pub fn install_rules(inspected: &Inspected) -> Result<(), Box<dyn Error>> {
    let (Survey::Missing(origin, _) | Survey::Drifted(origin)) = &inspected.survey else {
        return Ok(());
    };
    let origin = origin.clone();
    let install =
        move || firewall::install_native(&origin).and_then(|()| firewall::survey(Some(&origin)));
    match netns::run(&inspected.netns, NETNS_TIMEOUT, install)?? {
        Survey::Complete | Survey::Drifted(_) => Ok(()),
        Survey::Missing(_, missing) => {
            let missing = describe_missing(&missing);
            Err(format!("redirect rules are still missing after installing them: {missing}").into())
        }
        Survey::Unreadable => {
            Err("cannot verify the installed redirect rules: the network namespace has a table of \
                 iptables-legacy, or too many rules, which the repair controller cannot read"
                .into())
        }
    }
}
