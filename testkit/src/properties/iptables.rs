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
        let Some(body) = body else {
            return Err("not one transaction on table nat".to_owned());
        };
        let mut changed_table = self.clone();
        for line in body.lines() {
            changed_table.apply_line(line).map_err(|problem| format!("{line}: {problem}"))?;
        }
        changed_table.rules = Rules::read(&changed_table.list())?;
        *self = changed_table;
        Ok(())
    }

    fn apply_line(&mut self, line: &str) -> Result<(), String> {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.strip_suffix(" - [0:0]").ok_or("not a chain without a policy")?;
            self.chains.insert(name.to_owned(), Vec::new());
            return Ok(());
        }
        let (command, rest) = line.split_once(' ').ok_or("no argument")?;
        let name = rest.split(' ').next().unwrap_or_default();
        if command == "-N" {
            if self.chains.contains_key(name) {
                return Err("chain exists".to_owned());
            }
            self.chains.insert(name.to_owned(), Vec::new());
            return Ok(());
        }
        let chain = self.chains.get_mut(name).ok_or("no such chain")?;
        let line = format!("-A {rest}");
        match command {
            "-A" => {
                check_rule(&line)?;
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
    fn list(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.chains.keys().map(|name| format!("-N {name}")).collect();
        for rules in self.chains.values() {
            lines.extend_from_slice(rules);
        }
        lines
    }
}

/// Checks what iptables checks in a rule:
///
/// - the length of the comment;
/// - the number of ports;
/// - a rule with ports, with `REDIRECT` or with a port of `DNAT` has a condition on the protocol.
fn check_rule(line: &str) -> Result<(), String> {
    let (conditions, rest) = line.split_once(" -m comment --comment \"").ok_or("no comment")?;
    let (comment, target) = rest.split_once("\" -j ").ok_or("no target")?;
    if comment.len() > COMMENT_LIMIT || comment.contains('"') {
        return Err("invalid comment".to_owned());
    }
    if let Some((_, ports)) = conditions.split_once(" --dports ")
        && ports.split([',', ':']).count() > PORTS_LIMIT
    {
        return Err("too many ports".to_owned());
    }
    let has_target_port = target.starts_with("REDIRECT") || target.contains(":");
    let needs_protocol = conditions.contains(" --dport") || has_target_port;
    if needs_protocol && !conditions.contains(" -p tcp") {
        return Err("no condition on the protocol".to_owned());
    }
    Ok(())
}
