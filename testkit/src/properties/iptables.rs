//! A model of table `nat` of one address family: takes scripts of `iptables-restore --noflush`, and
//! decides on packets like the kernel. Knows the options that the redirect rules use, and rejects
//! all others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::packet::{Hook, Packet, TCP};

const BUILT_IN: [&str; 4] = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];
/// Longest comment, in bytes (`struct xt_comment_info`, with its NUL).
const COMMENT_LIMIT: usize = 255;

#[derive(Clone, Debug)]
pub struct Nat {
    chains: BTreeMap<String, Vec<Rule>>,
}

#[derive(Clone, Debug)]
struct Rule {
    line: String,
    conditions: Vec<Condition>,
    target: Target,
}

#[derive(Clone, Debug)]
enum Condition {
    Protocol(u8),
    Ports(Vec<RangeInclusive<u16>>),
    Source(IpAddr, u32),
    Uid(u32),
    Gid(u32),
    Output(String),
}

#[derive(Clone, Debug)]
enum Target {
    Return,
    Redirect(u16),
    Jump(String),
}

impl Default for Nat {
    fn default() -> Self {
        Nat { chains: BUILT_IN.map(|name| (name.to_owned(), Vec::new())).into() }
    }
}

impl Nat {
    /// Applies a script as one transaction: all of it or nothing.
    pub fn apply(&mut self, script: &str) -> Result<(), String> {
        let body = script.strip_prefix("*nat\n").and_then(|rest| rest.strip_suffix("COMMIT\n"));
        let mut next = self.clone();
        for line in body.ok_or("not one transaction on table nat")?.lines() {
            next.command(line).map_err(|problem| format!("{line}: {problem}"))?;
        }
        for rule in next.chains.values().flatten() {
            if let Target::Jump(chain) = &rule.target {
                next.chains.get(chain).ok_or(format!("{}: no chain {chain}", rule.line))?;
            }
        }
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
            "-A" => chain.push(rule(line)?),
            "-D" => {
                let index = chain.iter().position(|rule| rule.line == line);
                chain.remove(index.ok_or("no such rule")?);
            }
            _ => return Err("unknown command".to_owned()),
        }
        Ok(())
    }

    /// Lists the rules like `iptables -S`.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.chains.values().flatten().map(|rule| rule.line.as_str())
    }

    /// Returns the port to which the connection of `packet` is redirected.
    pub fn redirected_to(&self, packet: &Packet) -> Option<u16> {
        let chain = match packet.hook {
            Hook::Prerouting => "PREROUTING",
            Hook::Output => "OUTPUT",
        };
        self.walk(chain, packet)
    }

    /// Walks through a chain. `None` means that its end, or a `RETURN`, was reached.
    fn walk(&self, chain: &str, packet: &Packet) -> Option<u16> {
        for rule in &self.chains[chain] {
            if !rule.conditions.iter().all(|condition| condition.is_met(packet)) {
                continue;
            }
            match &rule.target {
                Target::Return => return None,
                Target::Redirect(port) => return Some(*port),
                Target::Jump(chain) => {
                    if let Some(port) = self.walk(chain, packet) {
                        return Some(port);
                    }
                }
            }
        }
        None
    }
}

impl Condition {
    fn is_met(&self, packet: &Packet) -> bool {
        match self {
            Condition::Protocol(protocol) => packet.protocol == *protocol,
            Condition::Ports(ranges) => {
                ranges.iter().any(|range| range.contains(&packet.destination_port))
            }
            Condition::Source(net, length) => {
                let prefix = |address| bits(address).map(|bits| bits.checked_shr(128 - length));
                prefix(packet.source) == prefix(*net) && packet.source.is_ipv4() == net.is_ipv4()
            }
            Condition::Uid(id) => packet.socket.is_some_and(|(uid, _)| uid == *id),
            Condition::Gid(id) => packet.socket.is_some_and(|(_, gid)| gid == *id),
            Condition::Output(name) => packet.output == name,
        }
    }
}

/// Returns the address, left-aligned in 128 bits.
fn bits(address: IpAddr) -> Option<u128> {
    Some(match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    })
}

fn rule(line: String) -> Result<Rule, String> {
    let (before, rest) = line.split_once(" -m comment --comment \"").ok_or("no comment")?;
    let (comment, target) = rest.split_once("\" -j ").ok_or("no target")?;
    if comment.len() > COMMENT_LIMIT || comment.contains('"') {
        return Err("invalid comment".to_owned());
    }
    // The first two words are `-A` and the chain.
    let words: Vec<&str> = before.split(' ').skip(2).collect();
    let conditions = conditions(&words)?;
    let target = match target.split(' ').collect::<Vec<_>>()[..] {
        ["RETURN"] => Target::Return,
        ["REDIRECT", "--to-ports", port] if is_tcp(&conditions) => Target::Redirect(number(port)?),
        [chain] => Target::Jump(chain.to_owned()),
        _ => return Err("invalid target".to_owned()),
    };
    Ok(Rule { conditions, target, line })
}

fn conditions(mut words: &[&str]) -> Result<Vec<Condition>, String> {
    let mut found = Vec::new();
    while !words.is_empty() {
        let (condition, rest) = match words {
            ["-p", "tcp", rest @ ..] => (Condition::Protocol(TCP), rest),
            ["-m", "multiport", "--dports", ports, rest @ ..] if is_tcp(&found) => {
                (Condition::Ports(ranges(ports)?), rest)
            }
            ["-m", "tcp", "--dport", port, rest @ ..] if is_tcp(&found) => {
                let port = number(port)?;
                (Condition::Ports(vec![port..=port]), rest)
            }
            ["-s", net, rest @ ..] => (source(net)?, rest),
            ["-m", "owner", "--uid-owner", id, rest @ ..] => (Condition::Uid(number(id)?), rest),
            ["-m", "owner", "--gid-owner", id, rest @ ..] => (Condition::Gid(number(id)?), rest),
            ["-o", name, rest @ ..] => (Condition::Output((*name).to_owned()), rest),
            other => return Err(format!("unknown condition {other:?}")),
        };
        found.push(condition);
        words = rest;
    }
    Ok(found)
}

/// Conditions on ports, and `REDIRECT` to a port, need a condition on the protocol.
fn is_tcp(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| matches!(condition, Condition::Protocol(TCP)))
}

/// Reads `80,100:200`: at most 15 ports, where a range counts as two.
fn ranges(text: &str) -> Result<Vec<RangeInclusive<u16>>, String> {
    if text.split([',', ':']).count() > 15 {
        return Err("too many ports".to_owned());
    }
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(first..=last) } else { Err(format!("{text} is reversed")) }
    };
    text.split(',').map(range).collect()
}

/// Reads a subnet without host bits. iptables would clear these.
fn source(text: &str) -> Result<Condition, String> {
    let (address, length) = text.split_once('/').ok_or("no prefix length")?;
    let (address, length): (IpAddr, u32) = (number(address)?, number(length)?);
    let width = if address.is_ipv4() { 32 } else { 128 };
    let host_bits = bits(address).and_then(|bits| bits.checked_shl(length)).unwrap_or_default();
    match length <= width && host_bits == 0 {
        true => Ok(Condition::Source(address, length)),
        false => Err(format!("{text} is not a subnet")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid value {text}"))
}
