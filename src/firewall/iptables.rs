//! The backends that run the host's iptables. The only user of the `iptables` crate.
//!
//! Applying is one `iptables-restore --noflush -w` a family: all rules or none.

mod programs;
mod restore;

use std::time::Duration;

use ::iptables::IPTables;

use super::{Error, order};
use crate::rules::{self, Chain, Family, Redirect, Rule};
use programs::Programs;

/// How long one `iptables-restore` may take, its wait for the xtables lock included.
const RESTORE_DEADLINE: Duration = Duration::from_secs(8);

/// All chains, each at the index of its discriminant.
const CHAINS: [Chain; 4] = [
    Chain::Prerouting,
    Chain::Output,
    Chain::ProxyInitRedirect,
    Chain::ProxyInitOutput,
];

/// Which of the host's iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nft,
    Legacy,
    Plain,
}

/// Makes table `nat` of each family redirect as `redirect` says. Repeating it gives
/// the same rules once; other rules of the table stay. On an error, what this call
/// added is taken out again.
pub fn apply(redirect: &Redirect, families: &[Family], kind: Kind) -> Result<(), Error> {
    let mut done: Vec<(Programs, Vec<Rule>)> = Vec::new();
    for &family in families {
        let rules = rules::rules(redirect, family);
        let applied = programs::find(kind, family)
            .and_then(|programs| apply_family(&programs, &rules).map(|fresh| (programs, fresh)));
        match applied {
            Ok((programs, true)) => done.push((programs, rules)),
            Ok((_, false)) => {}
            Err(error) => {
                for (programs, rules) in &done {
                    let undo = rules::undo_script(rules);
                    if let Err(error) = restore::run(&programs.restore, &undo, RESTORE_DEADLINE) {
                        tracing::error!("linkerd-cni: cannot take the rules out again: {error}");
                    }
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Returns whether the chains are new. A namespace that has them already costs a
/// second look, to find the jumps into them.
fn apply_family(programs: &Programs, rules: &[Rule]) -> Result<bool, Error> {
    let fresh = rules::install_script(rules, true, &[]);
    let Err(error) = restore::run(&programs.restore, &fresh, RESTORE_DEADLINE) else {
        return Ok(true);
    };
    let Ok(lines) = list(programs) else {
        return Err(error);
    };
    let ours = Chain::OURS.map(|chain| format!("-N {}", chain.name()));
    if !lines.iter().any(|line| ours.contains(line)) {
        return Err(error);
    }
    let jumps: Vec<String> = lines.into_iter().filter(|line| is_jump(line)).collect();
    let again = rules::install_script(rules, false, &jumps);
    restore::run(&programs.restore, &again, RESTORE_DEADLINE)?;
    Ok(false)
}

/// The rules of `redirect` that table `nat` does not have, as lines of
/// `iptables-save`. Empty: all are there, in order.
pub fn missing(redirect: &Redirect, families: &[Family], kind: Kind) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in families {
        let programs = programs::find(kind, family)?;
        let lines = list(&programs)?;
        let found = CHAINS.map(|chain| rules_of(&lines, chain));
        let mut from = [0; CHAINS.len()];
        for rule in rules::rules(redirect, family) {
            let line = rules::rule_line(&rule);
            let wanted = words(&line);
            // Each chain is searched from behind its last find, so that order counts.
            let from = &mut from[rule.chain as usize];
            let left = found[rule.chain as usize][*from..].iter();
            match order::next(rule.chain, left, |words| **words == wanted) {
                Some(place) => *from += place + 1,
                None => missing.push(line),
            }
        }
    }
    Ok(missing)
}

/// The rules of `chain` among `lines`, in order, each as its words.
fn rules_of(lines: &[String], chain: Chain) -> Vec<Vec<String>> {
    let start = format!("-A {} ", chain.name());
    let rules = lines.iter().filter(|line| line.starts_with(&start));
    rules.map(|line| words(line)).collect()
}

/// The words of a rule, sorted and unquoted: versions of iptables differ in the order
/// of conditions and in quotes.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = line
        .split_whitespace()
        .map(|word| word.trim_matches('"').to_owned())
        .collect();
    words.sort_unstable();
    words
}

fn is_jump(line: &str) -> bool {
    let foreign = [Chain::Prerouting, Chain::Output]
        .iter()
        .any(|chain| line.starts_with(&format!("-A {} ", chain.name())));
    foreign
        && Chain::OURS
            .iter()
            .any(|chain| line.ends_with(&format!("-j {}", chain.name())))
}

fn list(programs: &Programs) -> Result<Vec<String>, Error> {
    let iptables = IPTables {
        // The crate wants a name that lives for ever, and this process does not.
        cmd: String::leak(programs.command.to_string_lossy().into_owned()),
        has_check: true,
        has_wait: true,
        is_numeric: false,
    };
    let lines = iptables
        .list_table(rules::TABLE)
        .map_err(|error| Error::List {
            program: programs.command.clone(),
            message: error.to_string(),
        })?;
    // The crate passes a failure off as an empty list; a real one has the policies.
    if lines.iter().any(|line| line.starts_with("-P ")) {
        return Ok(lines);
    }
    Err(Error::List {
        program: programs.command.clone(),
        message: "it printed no chains".to_owned(),
    })
}
