//! The backends `nft`, `legacy` and `plain`, which run the host's iptables programs.
//!
//! Each run of `iptables-restore --noflush -w` applies all rules of one address family or none. If
//! the chains exist, a second run replaces the rules.

mod lock;
mod pipes;
mod program;
mod programs;

use std::time::Duration;

use super::Error;
use crate::deadline::Deadline;
use crate::redirect::backend::Variant;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Redirect};
use programs::Programs;
pub use programs::exist as has_programs;

/// Timeout for one program, including its wait of at most 5 s for the xtables lock.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(8);
/// Timeout for the program that removes the rules of one family after an error. It comes in addition
/// to the deadline of the call.
const UNDO_DEADLINE: Duration = Duration::from_secs(3);

/// Writes the rules of `redirect` to table `nat` of each family. Idempotent; other rules of the table
/// stay. Returns the variant of the programs that wrote the rules of the first family: `variant`,
/// unless the host lacks its programs.
///
/// # Errors
/// Fails if a program is missing or fails. Then the chains that this call created are removed;
/// chains that existed before keep the new rules.
pub fn apply(
    redirect: &Redirect,
    families: &[Family],
    variant: Variant,
    deadline: Deadline,
) -> Result<Variant, Error> {
    let mut used: Option<Variant> = None;
    let mut added: Vec<(Programs, Vec<Rule>)> = Vec::new();
    for &family in families {
        let rules = rules::marked_rules(redirect, family, families);
        let applied = programs::find(variant, family).and_then(|programs| {
            apply_family(&programs, &rules, deadline).map(|fresh| (programs, fresh))
        });
        match applied {
            Ok((programs, fresh)) => {
                used.get_or_insert(programs.variant);
                if fresh {
                    added.push((programs, rules));
                }
            }
            Err(error) => {
                for (programs, rules) in &added {
                    let undo = rules::undo_script(rules);
                    if let Err(error) = program::restore(&programs.restore, &undo, UNDO_DEADLINE) {
                        tracing::error!(
                            "linkerd-cni: cannot remove the IPv4 rules after the IPv6 rules failed: {error}"
                        );
                    }
                }
                return Err(error);
            }
        }
    }
    Ok(used.unwrap_or(variant))
}

/// Applies the rules of one family. Returns whether it created the chains. If the chains exist, lists
/// the table and replaces the jumps to the chains.
fn apply_family(programs: &Programs, rules: &[Rule], deadline: Deadline) -> Result<bool, Error> {
    let fresh = rules::install_script(rules, true, &[]);
    let (program, stderr) =
        match program::restore(&programs.restore, &fresh, time_for_program(deadline)) {
            Ok(()) => return Ok(true),
            Err(Error::Restore { program, stderr }) => (program, stderr),
            // Another program would meet the same, such as a held lock.
            Err(error) => return Err(error),
        };
    let lines = match program::list(&programs.command, time_for_program(deadline)) {
        Ok(lines) => lines,
        // Only the list says that the kernel lacks the table.
        Err(Error::List { message, .. }) => {
            return Err(Error::Restore { program, stderr: format!("{stderr}; {message}") });
        }
        Err(error) => return Err(error),
    };
    let declarations = Chain::LINKERD.map(|chain| format!("-N {}", chain.name()));
    if !lines.iter().any(|line| declarations.contains(line)) {
        return Err(Error::Restore { program, stderr });
    }
    let jumps: Vec<String> = lines.into_iter().filter(|line| is_jump(line)).collect();
    let again = rules::install_script(rules, false, &jumps);
    program::restore(&programs.restore, &again, time_for_program(deadline))?;
    Ok(false)
}

/// Returns the timeout of the next program of a call that ends at `deadline`.
fn time_for_program(deadline: Deadline) -> Duration {
    deadline.remaining().min(PROGRAM_DEADLINE)
}

/// Returns the rules of `redirect` that table `nat` lacks, as lines of `iptables-save`. Empty if all
/// are present in order.
///
/// # Errors
/// Fails if a program is missing or cannot list the table.
pub fn missing(
    redirect: &Redirect,
    families: &[Family],
    variant: Variant,
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in families {
        let listed = list(variant, family, deadline)?.map(|lines| {
            let unmarked = lines.iter().map(|line| {
                let comment = comment(line);
                line.replacen(comment, rules::split_comment(comment).0, 1)
            });
            unmarked.map(|line| words(&line)).collect()
        });
        let rules = rules::rules(redirect, family);
        missing.extend(rules::missing_in_order(&rules, &listed, |rule, listed| {
            *listed == words(&rules::rule_line(rule))
        }));
    }
    Ok(missing)
}

/// Returns the comments of the rules in table `nat`, markers included. Rules without a comment have an
/// empty one.
///
/// # Errors
/// Like [`missing`].
pub fn comments(
    variant: Variant,
    family: Family,
    deadline: Deadline,
) -> Result<ListedRules<String>, Error> {
    let listed = list(variant, family, deadline)?;
    Ok(listed.map(|lines| lines.iter().map(|line| comment(line).to_owned()).collect()))
}

/// Lists the rules of table `nat`, as lines of `iptables -S`.
fn list(
    variant: Variant,
    family: Family,
    deadline: Deadline,
) -> Result<ListedRules<String>, Error> {
    let programs = programs::find(variant, family)?;
    let lines = program::list(&programs.command, time_for_program(deadline))?;
    Ok(Chain::ALL.map(|chain| {
        let start = format!("-A {} ", chain.name());
        lines.iter().filter(|line| line.starts_with(&start)).cloned().collect()
    }))
}

/// Returns the comment of a rule, empty if it has none. Comments with a blank are quoted.
fn comment(line: &str) -> &str {
    let (_, comment) = line.split_once("--comment ").unwrap_or_default();
    match comment.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => comment.split(' ').next().unwrap_or_default(),
    }
}

/// Returns the words of a rule, sorted and unquoted. Versions of iptables differ in the order of
/// conditions and in quotes.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> =
        line.split_whitespace().map(|word| word.trim_matches('"').to_owned()).collect();
    words.sort_unstable();
    words
}

/// Returns whether the rule is a jump from a built-in chain to a chain of Linkerd.
fn is_jump(line: &str) -> bool {
    let is_in_builtin = [Chain::Prerouting, Chain::Output]
        .iter()
        .any(|chain| line.starts_with(&format!("-A {} ", chain.name())));
    is_in_builtin
        && Chain::LINKERD.iter().any(|chain| line.ends_with(&format!("-j {}", chain.name())))
}
