//! The backends `nft`, `legacy` and `plain`, which run the host's iptables programs.
//!
//! One run of `iptables-restore --noflush -w` applies all rules of one address family, or none. If
//! the chains exist already, this run fails and a second one replaces their rules.

mod host_programs;
mod lock;
mod program;

use std::path::PathBuf;
use std::time::Duration;

use super::error::Error;
use crate::deadline::Deadline;
use crate::redirect::backend_order::Backend;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Redirect};
use host_programs::{HostPrograms, find_command, find_programs};

/// Time limit for all programs that a call runs, of all backends together. The plugin's deadline
/// for work in a netns is longer, so that the error names the program that timed out.
pub const PROGRAMS_BUDGET: Duration = Duration::from_secs(15);

/// Time limit for the program that removes the rules of one family after an error. This time is in
/// addition to the deadline of the call.
const UNDO_BUDGET: Duration = Duration::from_secs(3);

/// The rules that a call wrote for one family.
struct WrittenRules {
    programs: HostPrograms,
    rules: Vec<Rule>,
    /// Whether the call created the chains. Otherwise it replaced the rules in existing chains.
    has_created_chains: bool,
}

/// Writes the rules of `redirect` to table `nat` of each family. The call is idempotent and keeps
/// the rules of other programs.
///
/// Returns the backend whose programs wrote the rules of the first family. This is `backend` unless
/// the host lacks its programs. After an error, removes the chains that this call created. Chains
/// that existed before may keep the new rules.
pub fn apply(
    redirect: &Redirect,
    families: &[Family],
    backend: Backend,
    deadline: Deadline,
) -> Result<Backend, Error> {
    let mut written = Vec::new();
    for &family in families {
        let rules = rules::marked_rules(redirect, family, families);
        match write_rules(rules, family, backend, deadline) {
            Ok(rules) => written.push(rules),
            Err(error) => {
                for earlier in &written {
                    undo(earlier);
                }
                return Err(error);
            }
        }
    }
    Ok(written.first().map_or(backend, |first| first.programs.backend))
}

/// Finds programs for `backend`, and writes the rules of one family with them.
fn write_rules(
    rules: Vec<Rule>,
    family: Family,
    backend: Backend,
    deadline: Deadline,
) -> Result<WrittenRules, Error> {
    let programs = find_programs(backend, family)?;
    let has_created_chains = restore_rules(&programs, &rules, deadline)?;
    Ok(WrittenRules { programs, rules, has_created_chains })
}

/// Removes the chains that this call created. If that fails, only logs the error.
fn undo(written: &WrittenRules) {
    if !written.has_created_chains {
        return;
    }
    let script = rules::undo_script(&written.rules);
    let deadline = Deadline::after(UNDO_BUDGET);
    if let Err(error) = program::restore(&written.programs.restore, &script, deadline) {
        tracing::error!(
            "linkerd-cni: cannot remove the IPv4 rules after the IPv6 rules failed: {error}"
        );
    }
}

/// Writes the rules of one family, and returns whether it created the chains.
fn restore_rules(
    programs: &HostPrograms,
    rules: &[Rule],
    deadline: Deadline,
) -> Result<bool, Error> {
    let script = rules::install_script(rules, true, &[]);
    match program::restore(&programs.restore, &script, deadline) {
        Ok(()) => Ok(true),
        Err(Error::Restore { program, stderr }) => {
            replace_rules(programs, rules, program, stderr, deadline)?;
            Ok(false)
        }
        // A second run would fail for the same reason, such as a held lock.
        Err(error) => Err(error),
    }
}

/// Replaces the rules in Linkerd's chains, and the jumps to these chains. Called after `program`
/// failed to create the chains, with the error `stderr`. If the chains do not exist, it failed for
/// another reason, so this function fails with the same error.
fn replace_rules(
    programs: &HostPrograms,
    rules: &[Rule],
    program: PathBuf,
    stderr: String,
    deadline: Deadline,
) -> Result<(), Error> {
    let lines = match program::list_nat_table(&programs.command, deadline) {
        Ok(lines) => lines,
        // If the kernel lacks the table, only the error of the listing says so.
        Err(Error::Other { problem, .. }) => {
            return Err(Error::Restore { program, stderr: format!("{stderr}; {problem}") });
        }
        Err(error) => return Err(error),
    };
    if !lines.iter().any(|line| declares_linkerd_chain(line)) {
        return Err(Error::Restore { program, stderr });
    }
    let jumps: Vec<String> = lines.into_iter().filter(|line| is_jump(line)).collect();
    let script = rules::install_script(rules, false, &jumps);
    program::restore(&programs.restore, &script, deadline)
}

/// Returns whether `line` of `iptables -S` creates one of Linkerd's chains.
fn declares_linkerd_chain(line: &str) -> bool {
    Chain::LINKERD.iter().any(|chain| line == format!("-N {}", chain.name()))
}

/// Returns the comments of the rules of `iptables-legacy`, markers included. A rule without a
/// comment has an empty one.
pub fn legacy_comments(family: Family, deadline: Deadline) -> Result<ListedRules<String>, Error> {
    let mut comments = ListedRules::default();
    if !has_legacy_nat(family) {
        return Ok(comments);
    }
    for line in legacy_lines(family, deadline)? {
        for chain in Chain::ALL {
            if appends_to(&line, chain) {
                comments[chain as usize].push(comment_in(&line));
            }
        }
    }
    Ok(comments)
}

/// Returns the comment of the rule in `line`, empty if the rule has none.
fn comment_in(line: &str) -> String {
    let mut words = rules::split_words(line).into_iter();
    while let Some(word) = words.next() {
        if word == "--comment" {
            return words.next().unwrap_or_default();
        }
    }
    String::new()
}

/// Returns whether the calling thread's netns has a table `nat` of `iptables-legacy`. Call this
/// before running `iptables-legacy`: it would create a missing table, and the repair controller
/// could then not tell that rules are missing.
pub fn has_legacy_nat(family: Family) -> bool {
    let names = match family {
        Family::Ipv4 => "ip_tables_names",
        Family::Ipv6 => "ip6_tables_names",
    };
    // The file is missing if the kernel lacks legacy iptables.
    std::fs::read_to_string(format!("/proc/thread-self/net/{names}"))
        .is_ok_and(|names| names.lines().any(|name| name == rules::NAT_TABLE))
}

/// Lists table `nat` of legacy iptables as lines of `iptables -S`.
fn legacy_lines(family: Family, deadline: Deadline) -> Result<Vec<String>, Error> {
    for backend in [Backend::Legacy, Backend::Plain] {
        if let Some(command) = find_command(backend, family)
            && program::is_legacy(&command, deadline)?
        {
            return program::list_nat_table(&command, deadline);
        }
    }
    let problem = "the node has no iptables-legacy to list its rules".to_owned();
    Err(Error::Other { problem, remedy: None })
}

/// Returns whether the rule in `line` jumps from a built-in chain to one of Linkerd's chains.
fn is_jump(line: &str) -> bool {
    let is_in_built_in_chain =
        appends_to(line, Chain::Prerouting) || appends_to(line, Chain::Output);
    is_in_built_in_chain
        && Chain::LINKERD.iter().any(|chain| line.ends_with(&format!("-j {}", chain.name())))
}

/// Returns whether `line` of `iptables -S` is a rule in `chain`.
fn appends_to(line: &str, chain: Chain) -> bool {
    line.starts_with(&format!("-A {} ", chain.name()))
}
