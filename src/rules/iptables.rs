//! Rules as the text of iptables: lines as `iptables-save` prints them, and scripts
//! for `iptables-restore --noflush`, each one transaction.

use std::fmt::Write as _;

use super::{Chain, Match, Rule, Verdict};

/// The table that all rules stand in.
pub const TABLE: &str = "nat";

/// One rule as `iptables-save` prints it, e.g. `-A OUTPUT -j PROXY_INIT_OUTPUT`.
pub fn rule_line(rule: &Rule) -> String {
    let mut line = format!("-A {}", rule.chain.name());
    for condition in &rule.matches {
        line.push(' ');
        line.push_str(&match_text(condition));
    }
    let comment = &rule.comment;
    let target = verdict_text(rule.verdict);
    // Writing to a String cannot fail.
    let _ = write!(line, " -m comment --comment \"{comment}\" -j {target}");
    line
}

/// A script that makes our chains hold exactly `rules`, whatever they held before.
/// `old_jumps` are the jumps into them that are already there, as lines of
/// `iptables-save`; they are taken out in the same transaction.
///
/// With `fresh`, the chains must not exist yet: the script fails as a whole if they
/// do, since jumps may then be there that the caller has to look for.
pub fn install_script(rules: &[Rule], fresh: bool, old_jumps: &[String]) -> String {
    let mut script = format!("*{TABLE}\n");
    for chain in Chain::OURS {
        let name = chain.name();
        // A declared chain is created or flushed, an -N must create it.
        let _ = if fresh {
            writeln!(script, "-N {name}")
        } else {
            writeln!(script, ":{name} - [0:0]")
        };
    }
    for jump in old_jumps {
        let _ = writeln!(script, "{}", deletion(jump));
    }
    for rule in rules {
        let _ = writeln!(script, "{}", rule_line(rule));
    }
    script.push_str("COMMIT\n");
    script
}

/// A script that takes out what a fresh [`install_script`] of `rules` put in.
pub fn undo_script(rules: &[Rule]) -> String {
    let mut script = format!("*{TABLE}\n");
    for rule in rules {
        if let Verdict::Jump(_) = rule.verdict {
            let _ = writeln!(script, "{}", deletion(&rule_line(rule)));
        }
    }
    for chain in Chain::OURS {
        let _ = writeln!(script, "-F {}", chain.name());
    }
    for chain in Chain::OURS {
        let _ = writeln!(script, "-X {}", chain.name());
    }
    script.push_str("COMMIT\n");
    script
}

fn deletion(line: &str) -> String {
    line.replacen("-A ", "-D ", 1)
}

fn match_text(condition: &Match) -> String {
    match condition {
        Match::Tcp => "-p tcp".to_owned(),
        Match::Ports(ranges) => {
            format!("-m multiport --dports {}", crate::ports::joined(ranges))
        }
        Match::Port(port) => format!("-m tcp --dport {port}"),
        Match::Source(net) => format!("-s {net}"),
        Match::Uid(uid) => format!("-m owner --uid-owner {uid}"),
        Match::Gid(gid) => format!("-m owner --gid-owner {gid}"),
        Match::Loopback => "-o lo".to_owned(),
    }
}

fn verdict_text(verdict: Verdict) -> String {
    match verdict {
        Verdict::Return => "RETURN".to_owned(),
        Verdict::Redirect(port) => format!("REDIRECT --to-ports {port}"),
        Verdict::Jump(chain) => chain.name().to_owned(),
    }
}
