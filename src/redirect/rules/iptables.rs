//! Renders rules as lines of `iptables-save` and as scripts for `iptables-restore --noflush`. Each
//! script is one transaction. Also splits listed rules into words.

use super::{Chain, Match, Rule, Verdict, ports};

/// Table that holds the rules of the iptables backends.
pub const NAT_TABLE: &str = "nat";

/// Renders a rule like `iptables-save`, for example `-A OUTPUT -j PROXY_INIT_OUTPUT`.
pub fn rule_line(rule: &Rule) -> String {
    let mut line = format!("-A {}", rule.chain.name());
    for condition in &rule.matches {
        line.push(' ');
        line.push_str(&match_text(condition));
    }
    let comment = &rule.comment;
    let target = verdict_text(rule.verdict);
    line + &format!(" -m comment --comment \"{comment}\" -j {target}")
}

/// Renders a script that replaces the content of Linkerd's chains with `rules`. The script also
/// removes `old_jumps`, the existing jumps to these chains as lines of `iptables-save`.
///
/// If `fresh` is set, the script fails if the chains exist. Jumps to the chains may then exist too:
/// list them, and render a script with `old_jumps`.
pub fn install_script(rules: &[Rule], fresh: bool, old_jumps: &[String]) -> String {
    let mut script = format!("*{NAT_TABLE}\n");
    for chain in Chain::LINKERD {
        let name = chain.name();
        // `-N NAME` fails if the chain exists. `:NAME` creates or flushes the chain.
        if fresh {
            script += &format!("-N {name}\n");
        } else {
            script += &format!(":{name} - [0:0]\n");
        }
    }
    for jump in old_jumps {
        script += &format!("{}\n", delete_line(jump));
    }
    for rule in rules {
        script += &format!("{}\n", rule_line(rule));
    }
    script.push_str("COMMIT\n");
    script
}

/// Renders a script that removes what a fresh [`install_script`] of `rules` added.
pub fn undo_script(rules: &[Rule]) -> String {
    let mut script = format!("*{NAT_TABLE}\n");
    for rule in rules {
        if let Verdict::Jump(_) = rule.verdict {
            script += &format!("{}\n", delete_line(&rule_line(rule)));
        }
    }
    for command in ["-F", "-X"] {
        for chain in Chain::LINKERD {
            script += &format!("{command} {}\n", chain.name());
        }
    }
    script.push_str("COMMIT\n");
    script
}

/// Turns a line that appends a rule into a line that deletes the rule.
fn delete_line(line: &str) -> String {
    line.replacen("-A ", "-D ", 1)
}

fn match_text(condition: &Match) -> String {
    match condition {
        Match::Tcp => "-p tcp".to_owned(),
        Match::Ports(ranges) => {
            format!("-m multiport --dports {}", ports::joined(ranges))
        }
        Match::Port(port) => format!("-m tcp --dport {port}"),
        Match::Source(net) => format!("-s {net}"),
        Match::Destination(net) => format!("-d {net}"),
        Match::Uid(uid) => format!("-m owner --uid-owner {uid}"),
        Match::Gid(gid) => format!("-m owner --gid-owner {gid}"),
        Match::Loopback => "-o lo".to_owned(),
        Match::Arrival(interface) => format!("-i {interface}"),
    }
}

fn verdict_text(verdict: Verdict) -> String {
    match verdict {
        Verdict::Return => "RETURN".to_owned(),
        Verdict::Redirect(port) => format!("REDIRECT --to-ports {port}"),
        Verdict::RedirectToLoopback(port) => format!("DNAT --to-destination 127.0.0.1:{port}"),
        // iptables rejects DROP in table nat. The kernel drops arriving packets for 0.0.0.0.
        Verdict::Discard => "DNAT --to-destination 0.0.0.0".to_owned(),
        Verdict::Jump(chain) => chain.name().to_owned(),
    }
}

/// Splits a line of `iptables -S` at blanks outside quotes, and removes the quotes.
pub fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' => word.extend(characters.next()),
            ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
            character => word.push(character),
        }
    }
    words.push(word);
    words
}
