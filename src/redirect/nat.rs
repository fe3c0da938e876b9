//! Decides for a packet what the rules of a table `nat` do, from their text. Knows the options of
//! Linkerd's rules and similar ones; any other option is an error.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
/// Largest number of nested chains. The kernel allows no loop.
const DEPTH_LIMIT: usize = 16;

/// A hook of table `nat` that has redirect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Output,
}

impl Hook {
    pub fn chain(self) -> &'static str {
        match self {
            Hook::Prerouting => "PREROUTING",
            Hook::Output => "OUTPUT",
        }
    }
}

/// What a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Protocol,
    Source,
    Destination,
    /// Destination port.
    Port,
    Uid,
    Gid,
    /// Incoming interface.
    Input,
    /// Outgoing interface.
    Output,
}

/// First packet of a connection: its fields as numbers, each at the index of its [`Field`]. `None`: the
/// packet has no such field, such as a UID at [`Hook::Prerouting`].
pub type Packet = [Option<u128>; 8];

/// Numbers from the first to the last, both included.
pub type Range = (u128, u128);

#[derive(Clone, Debug)]
pub struct Condition {
    pub field: Field,
    pub ranges: Vec<Range>,
    is_negated: bool,
}

#[derive(Clone, Debug)]
enum Target {
    Return,
    Accept,
    Redirect(u16),
    Jump(String),
}

#[derive(Clone, Debug)]
struct Rule {
    conditions: Vec<Condition>,
    target: Target,
}

enum Verdict {
    Redirect(u16),
    Accept,
    /// The chain ended, or a rule returned from it.
    Return,
}

/// The rules that packets can reach in a table `nat` of one address family.
#[derive(Clone, Debug, Default)]
pub struct Nat(BTreeMap<String, Vec<Rule>>);

impl Nat {
    /// Reads lines of `iptables -S`.
    ///
    /// # Errors
    /// Fails if a rule that packets can reach has an unknown option, and names the rule.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Nat, String> {
        let mut chains: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["-P" | "-N", name, ..] => drop(chains.entry(name).or_default()),
                ["-A", name, ..] => chains.entry(name).or_default().push(line),
                _ => return Err(format!("the line {line}")),
            }
        }
        let mut nat = Nat::default();
        for hook in [Hook::Prerouting, Hook::Output] {
            nat.add(&chains, hook.chain(), 0)?;
        }
        Ok(nat)
    }

    /// Adds a chain, and those to which its rules jump.
    fn add(
        &mut self,
        chains: &BTreeMap<&str, Vec<&str>>,
        name: &str,
        depth: usize,
    ) -> Result<(), String> {
        if depth > DEPTH_LIMIT {
            return Err(format!("the chain {name}, as it is nested too deep"));
        }
        if self.0.contains_key(name) {
            return Ok(());
        }
        let mut rules = Vec::new();
        for line in chains.get(name).into_iter().flatten() {
            let rule = rule(line).map_err(|why| format!("the rule {line}: {why}"))?;
            if let Target::Jump(chain) = &rule.target {
                if !chains.contains_key(chain.as_str()) {
                    return Err(format!("the rule {line}: unknown target {chain}"));
                }
                self.add(chains, chain, depth + 1)?;
            }
            rules.push(rule);
        }
        self.0.insert(name.to_owned(), rules);
        Ok(())
    }

    /// Whether packets reach no rule.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.0.values().flatten().flat_map(|rule| &rule.conditions)
    }

    /// Returns the port to which the connection of `packet` is redirected.
    pub fn redirected_to(&self, hook: Hook, packet: &Packet) -> Option<u16> {
        match self.walk(hook.chain(), packet) {
            Verdict::Redirect(port) => Some(port),
            Verdict::Accept | Verdict::Return => None,
        }
    }

    fn walk(&self, chain: &str, packet: &Packet) -> Verdict {
        for rule in self.0.get(chain).into_iter().flatten() {
            if !rule.conditions.iter().all(|condition| condition.is_met(packet)) {
                continue;
            }
            match &rule.target {
                Target::Return => return Verdict::Return,
                Target::Accept => return Verdict::Accept,
                Target::Redirect(port) => return Verdict::Redirect(*port),
                Target::Jump(chain) => match self.walk(chain, packet) {
                    Verdict::Return => {}
                    verdict => return verdict,
                },
            }
        }
        Verdict::Return
    }
}

impl Condition {
    fn is_met(&self, packet: &Packet) -> bool {
        packet[self.field as usize].is_some_and(|number| self.has(number)) != self.is_negated
    }

    /// Whether the number is in one of the ranges.
    pub fn has(&self, number: u128) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

fn rule(line: &str) -> Result<Rule, String> {
    let words = words(line);
    // The first two words are `-A` and the chain.
    let mut words = words.iter().map(String::as_str).skip(2);
    let (mut conditions, mut target, mut is_negated) = (Vec::new(), None, false);
    while let Some(option) = words.next() {
        if option == "!" {
            is_negated = true;
            continue;
        }
        let value = words.next().ok_or(format!("no value of {option}"))?;
        let (field, ranges) = match (option, value) {
            ("-m", "tcp" | "udp" | "multiport" | "owner" | "comment") | ("--comment", _) => {
                continue;
            }
            ("-j", "RETURN") => {
                target = Some(Target::Return);
                continue;
            }
            ("-j", "ACCEPT") => {
                target = Some(Target::Accept);
                continue;
            }
            ("-j", "REDIRECT") => match (words.next(), words.next().map(number::<u16>)) {
                (Some("--to-ports"), Some(port)) => {
                    target = Some(Target::Redirect(port?));
                    continue;
                }
                _ => return Err("unknown form of REDIRECT".to_owned()),
            },
            ("-j", chain) => {
                target = Some(Target::Jump(chain.to_owned()));
                continue;
            }
            ("-p", "tcp") => (Field::Protocol, vec![(TCP.into(), TCP.into())]),
            ("-p", "udp") => (Field::Protocol, vec![(UDP.into(), UDP.into())]),
            ("-s", net) => (Field::Source, vec![subnet(net)?]),
            ("-d", net) => (Field::Destination, vec![subnet(net)?]),
            ("-i", name) => (Field::Input, vec![interface(name)?]),
            ("-o", name) => (Field::Output, vec![interface(name)?]),
            ("--dport" | "--dports", ports) => (
                Field::Port,
                ports.split(',').map(|ports| range::<u16>(ports, ':')).collect::<Result<_, _>>()?,
            ),
            ("--uid-owner", id) => (Field::Uid, vec![range::<u32>(id, '-')?]),
            ("--gid-owner", id) => (Field::Gid, vec![range::<u32>(id, '-')?]),
            _ => return Err(format!("unknown option {option} {value}")),
        };
        conditions.push(Condition { field, ranges, is_negated });
        is_negated = false;
    }
    Ok(Rule { conditions, target: target.ok_or("no target")? })
}

/// Splits a line at blanks outside quotes, and removes the quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted, mut characters) = (vec![String::new()], false, line.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            character => {
                let escaped = if character == '\\' { characters.next() } else { None };
                words
                    .last_mut()
                    .map(|word| word.push(escaped.unwrap_or(character)))
                    .unwrap_or_default();
            }
        }
    }
    words
}

/// Reads a number, or two with `separator` in between.
fn range<T: std::str::FromStr + Into<u128>>(text: &str, separator: char) -> Result<Range, String> {
    let (first, last) = text.split_once(separator).unwrap_or((text, text));
    let (first, last) = (number::<T>(first)?.into(), number::<T>(last)?.into());
    if first <= last { Ok((first, last)) } else { Err(format!("{text} is reversed")) }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid value {text}"))
}

fn subnet(text: &str) -> Result<Range, String> {
    let net: IpNet = number(text)?;
    if net != net.trunc() {
        return Err(format!("{text} is not a subnet"));
    }
    Ok((address(net.network()), address(net.broadcast())))
}

/// Returns the number of an address.
pub fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Reads a name of at most 15 bytes (`IFNAMSIZ`) as a number. `+` at its end stands for any text.
fn interface(name: &str) -> Result<Range, String> {
    if name.ends_with('+') || name.len() >= size_of::<u128>() {
        return Err(format!("unknown form of interface {name}"));
    }
    let number = interface_number(name);
    Ok((number, number))
}

/// Returns the number of an interface: the bytes of its name.
pub fn interface_number(name: &str) -> u128 {
    name.bytes().fold(0, |number, byte| number << 8 | u128::from(byte))
}
