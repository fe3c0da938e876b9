//! The backends `nft`, `legacy` and `plain`, which run the host's iptables programs.
//!
//! Each run of `iptables-restore --noflush -w` applies all rules of one address family or none. If
//! the chains exist, a second run replaces the rules.

mod lock;
mod program;
mod programs;

use std::time::Duration;

use super::{Error, other};
use crate::deadline::Deadline;
use crate::redirect::backend::Backend;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Redirect};
use programs::Programs;

/// Timeout for the program that removes the rules of one family after an error. It comes in addition
/// to the deadline of the call.
const UNDO_BUDGET: Duration = Duration::from_secs(3);

/// Writes the rules of `redirect` to table `nat` of each family. Idempotent; other rules of the table
/// stay. Returns the backend whose programs wrote the rules of the first family: `backend`, unless the
/// host lacks its programs.
/// After an error the chains that this call created are removed; others keep the new rules.
pub fn apply(
    redirect: &Redirect,
    families: &[Family],
    backend: Backend,
    deadline: Deadline,
) -> Result<Backend, Error> {
    let mut written = Vec::new();
    for &family in families {
        let rules = rules::marked_rules(redirect, family, families);
        let applied = programs::find(backend, family).and_then(|programs| {
            let is_fresh = apply_family(&programs, &rules, deadline)?;
            written.push((programs, rules, is_fresh));
            Ok(())
        });
        if let Err(error) = applied {
            let fresh = written.iter().filter(|(.., is_fresh)| *is_fresh);
            fresh.for_each(|(programs, rules, _)| undo(programs, rules));
            return Err(error);
        }
    }
    Ok(written.first().map_or(backend, |(programs, ..)| programs.backend))
}

fn undo(programs: &Programs, rules: &[Rule]) {
    let script = rules::undo_script(rules);
    if let Err(error) = program::restore(&programs.restore, &script, Deadline::after(UNDO_BUDGET)) {
        tracing::error!(
            "linkerd-cni: cannot remove the IPv4 rules after the IPv6 rules failed: {error}"
        );
    }
}

/// Returns whether it created the chains. If they exist, replaces the jumps to them.
fn apply_family(programs: &Programs, rules: &[Rule], deadline: Deadline) -> Result<bool, Error> {
    let fresh = rules::install_script(rules, true, &[]);
    let (program, stderr) = match program::restore(&programs.restore, &fresh, deadline) {
        Ok(()) => return Ok(true),
        Err(Error::Restore { program, stderr }) => (program, stderr),
        // Another program would fail for the same reason, such as a held lock.
        Err(error) => return Err(error),
    };
    let lines = match program::list(&programs.command, deadline) {
        Ok(lines) => lines,
        // Only the list says that the kernel lacks the table.
        Err(Error::Other { problem, .. }) => {
            return Err(Error::Restore { program, stderr: format!("{stderr}; {problem}") });
        }
        Err(error) => return Err(error),
    };
    let declarations = Chain::LINKERD.map(|chain| format!("-N {}", chain.name()));
    if !lines.iter().any(|line| declarations.contains(line)) {
        return Err(Error::Restore { program, stderr });
    }
    let jumps: Vec<String> = lines.into_iter().filter(|line| is_jump(line)).collect();
    let again = rules::install_script(rules, false, &jumps);
    program::restore(&programs.restore, &again, deadline)?;
    Ok(false)
}

/// Comments, with markers, of the rules of `iptables-legacy`. Rules without a comment have an empty one.
pub fn legacy_comments(family: Family, deadline: Deadline) -> Result<ListedRules<String>, Error> {
    let lines = if has_legacy_nat(family) { legacy_lines(family, deadline)? } else { Vec::new() };
    let comment = |line: &String| {
        let mut words = rules::words(line).into_iter();
        words.find(|word| word == "--comment").and_then(|_| words.next()).unwrap_or_default()
    };
    Ok(Chain::ALL.map(|chain| {
        let start = format!("-A {} ", chain.name());
        lines.iter().filter(|line| line.starts_with(&start)).map(comment).collect()
    }))
}

/// Whether `iptables-legacy` created its table `nat` in the calling thread's netns. Listing a missing table
/// would create it, and hide from the repair controller that rules are missing.
pub fn has_legacy_nat(family: Family) -> bool {
    let names = match family {
        Family::Ipv4 => "ip_tables_names",
        Family::Ipv6 => "ip6_tables_names",
    };
    // The file is missing if the kernel lacks legacy iptables.
    std::fs::read_to_string(format!("/proc/thread-self/net/{names}"))
        .is_ok_and(|names| names.lines().any(|name| name == rules::NAT_TABLE))
}

/// Lists the whole table `nat` of legacy iptables as lines of `iptables -S`.
fn legacy_lines(family: Family, deadline: Deadline) -> Result<Vec<String>, Error> {
    for backend in [Backend::Legacy, Backend::Plain] {
        if let Ok(programs) = programs::find(backend, family)
            && program::is_legacy(&programs.command, deadline)?
        {
            return program::list(&programs.command, deadline);
        }
    }
    Err(other("the node has no iptables-legacy to list its rules"))
}

fn is_jump(line: &str) -> bool {
    let is_in = |chain: &Chain| line.starts_with(&format!("-A {} ", chain.name()));
    let is_to = |chain: &Chain| line.ends_with(&format!("-j {}", chain.name()));
    [Chain::Prerouting, Chain::Output].iter().any(is_in) && Chain::LINKERD.iter().any(is_to)
}
