//! The backends `nft`, `legacy` and `plain`, which run the host's iptables programs.
//!
//! Each run of `iptables-restore --noflush -w` applies all rules of one address family or none. If
//! the chains exist, a second run replaces the rules.

mod lock;
mod program;
mod programs;

use std::time::Duration;

use super::Error;
use crate::deadline::Deadline;
use crate::redirect::backend::Backend;
use crate::redirect::nat::words;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Redirect};
use programs::Programs;
pub use programs::exist as has_programs;

/// The word before a rule's comment.
const COMMENT: &str = "--comment";
/// Timeout for one program, including its wait of at most 5 s for the xtables lock.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(8);
/// Timeout for the program that removes the rules of one family after an error. It comes in addition
/// to the deadline of the call.
const UNDO_DEADLINE: Duration = Duration::from_secs(3);

/// Writes the rules of `redirect` to table `nat` of each family. Idempotent; other rules of the table
/// stay. Returns the backend whose programs wrote the rules of the first family: `backend`, unless the
/// host lacks its programs.
/// Fails if a program is missing or fails. Then the chains that this call created are removed;
/// chains that existed before keep the new rules.
pub fn apply(
    redirect: &Redirect,
    families: &[Family],
    backend: Backend,
    deadline: Deadline,
) -> Result<Backend, Error> {
    let mut used = None;
    let mut added = Vec::new();
    for &family in families {
        let rules = rules::marked_rules(redirect, family, families);
        let applied = programs::find(backend, family).and_then(|programs| {
            apply_family(&programs, &rules, deadline).map(|is_fresh| (programs, is_fresh))
        });
        match applied {
            Ok((programs, is_fresh)) => {
                used.get_or_insert(programs.backend);
                if is_fresh {
                    added.push((programs, rules));
                }
            }
            Err(error) => {
                added.iter().for_each(|(programs, rules)| undo(programs, rules));
                return Err(error);
            }
        }
    }
    Ok(used.unwrap_or(backend))
}

fn undo(programs: &Programs, rules: &[Rule]) {
    let script = rules::undo_script(rules);
    if let Err(error) = program::restore(&programs.restore, &script, UNDO_DEADLINE) {
        tracing::error!(
            "linkerd-cni: cannot remove the IPv4 rules after the IPv6 rules failed: {error}"
        );
    }
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

fn time_for_program(deadline: Deadline) -> Duration {
    deadline.remaining().min(PROGRAM_DEADLINE)
}

/// Returns the rules of `redirect` that table `nat` lacks, as lines of `iptables-save`. Empty if all
/// are present in order.
pub fn missing(
    redirect: &Redirect,
    families: &[Family],
    backend: Backend,
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in families {
        let listed = list(backend, family, deadline)?;
        let listed = listed.map(|lines| lines.iter().map(|line| sorted(line)).collect::<Vec<_>>());
        let rules = rules::rules(redirect, family);
        let is_same =
            |run: &[Rule], listed: &Vec<String>| Ok(*listed == sorted(&rules::rule_line(&run[0])));
        let listed = listed.each_ref().map(Vec::as_slice);
        missing.extend(rules::missing_in_order(
            &mut rules.chunks(1),
            listed,
            &Chain::LINKERD,
            &is_same,
        )?);
    }
    Ok(missing)
}

/// Returns the comments of the rules in table `nat`, markers included. Rules without a comment have an
/// empty one.
pub fn comments(
    backend: Backend,
    family: Family,
    deadline: Deadline,
) -> Result<ListedRules<String>, Error> {
    let comment = |line: &String| {
        let mut words = words(line).into_iter();
        words.find(|word| word == COMMENT).and_then(|_| words.next()).unwrap_or_default()
    };
    let listed = list(backend, family, deadline)?;
    Ok(listed.map(|lines| lines.iter().map(comment).collect()))
}

/// Lists the rules of table `nat`, as lines of `iptables -S`.
fn list(
    backend: Backend,
    family: Family,
    deadline: Deadline,
) -> Result<ListedRules<String>, Error> {
    let programs = programs::find(backend, family)?;
    let lines = program::list(&programs.command, time_for_program(deadline))?;
    Ok(Chain::ALL.map(|chain| {
        let start = format!("-A {} ", chain.name());
        lines.iter().filter(|line| line.starts_with(&start)).cloned().collect()
    }))
}

/// Lists the whole table `nat` of nf_tables, or that of legacy iptables, as lines of `iptables -S`. Never
/// lists the other one, as listing creates a missing legacy table.
pub fn lines_of(is_legacy: bool, family: Family, deadline: Deadline) -> Result<Vec<String>, Error> {
    let backend = if is_legacy { Backend::Legacy } else { Backend::Nft };
    let programs = [backend, Backend::Plain].map(|backend| programs::find(backend, family));
    for programs in programs.into_iter().flatten() {
        if program::is_legacy(&programs.command, time_for_program(deadline))? == is_legacy {
            return program::list(&programs.command, time_for_program(deadline));
        }
    }
    let why = format!("the node has no iptables-{backend} to list its rules");
    Err(Error::Incomparable { why })
}

/// Returns the words of a rule without its marker, sorted: versions of iptables differ in the order of
/// conditions.
fn sorted(line: &str) -> Vec<String> {
    let mut words = words(line);
    if let Some(index) = words.iter().position(|word| word == COMMENT)
        && let Some(comment) = words.get_mut(index + 1)
    {
        comment.truncate(rules::split_comment(comment).0.len());
    }
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
