//! A model of table `nat` that applies scripts of `iptables-restore`, and rejects what iptables
//! rejects.

use std::collections::BTreeMap;

use super::evaluator::Rules;

const BUILT_IN: [&str; 4] = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];
/// Longest comment, in bytes (`struct xt_comment_info`, with its NUL).
const COMMENT_LIMIT: usize = 255;
/// Largest number of ports in a condition. A range counts as two.
const PORTS_LIMIT: usize = 15;

#[derive(Clone, Debug)]
pub struct NatTable {
    chains: BTreeMap<String, Vec<String>>,
    rules: Rules,
}

impl Default for NatTable {
    fn default() -> Self {
        let chains = BUILT_IN.map(|name| (name.to_owned(), Vec::new())).into();
        NatTable { chains, rules: Rules::default() }
    }
}

impl NatTable {
    /// Applies a script as one transaction: after an error, the table is unchanged.
    pub fn apply(&mut self, script: &str) -> Result<(), String> {
        let body = script.strip_prefix("*nat\n").and_then(|rest| rest.strip_suffix("COMMIT\n"));
        let mut next = self.clone();
        for line in body.ok_or("not one transaction on table nat")?.lines() {
            next.command(line).map_err(|problem| format!("{line}: {problem}"))?;
        }
        next.rules = Rules::read(&next.listed())?;
        *self = next;
        Ok(())
    }

    fn command(&mut self, line: &str) -> Result<(), String> {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.strip_suffix(" - [0:0]").ok_or("not a chain without a policy")?;
            self.chains.insert(name.to_owned(), Vec::new());
            return Ok(());
        }
        let (command, rest) = line.split_once(' ').ok_or("no argument")?;
        let name = rest.split(' ').next().unwrap_or_default();
        if command == "-N" {
            let old = self.chains.insert(name.to_owned(), Vec::new());
            return if old.is_some() { Err("chain exists".to_owned()) } else { Ok(()) };
        }
        let chain = self.chains.get_mut(name).ok_or("no such chain")?;
        let line = format!("-A {rest}");
        match command {
            "-A" => {
                check(&line)?;
                chain.push(line);
            }
            "-D" => {
                let index = chain.iter().position(|rule| *rule == line);
                chain.remove(index.ok_or("no such rule")?);
            }
            _ => return Err("unknown command".to_owned()),
        }
        Ok(())
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Lists the table like `iptables -S`.
    fn listed(&self) -> Vec<String> {
        let chains = self.chains.keys().map(|name| format!("-N {name}"));
        chains.chain(self.chains.values().flatten().cloned()).collect()
    }
}

/// Checks what iptables checks: comment, number of ports, and a protocol before ports and
/// `REDIRECT` or the port of `DNAT`.
fn check(line: &str) -> Result<(), String> {
    let (before, rest) = line.split_once(" -m comment --comment \"").ok_or("no comment")?;
    let (comment, target) = rest.split_once("\" -j ").ok_or("no target")?;
    if comment.len() > COMMENT_LIMIT || comment.contains('"') {
        return Err("invalid comment".to_owned());
    }
    if let Some((_, ports)) = before.split_once(" --dports ")
        && ports.split([',', ':']).count() > PORTS_LIMIT
    {
        return Err("too many ports".to_owned());
    }
    let has_port = target.starts_with("REDIRECT") || target.contains(":");
    let needs_tcp = before.contains(" --dport") || has_port;
    if needs_tcp && !before.contains(" -p tcp") {
        return Err("no condition on the protocol".to_owned());
    }
    Ok(())
}
