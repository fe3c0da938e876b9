//! Decides for a packet what the rules of a table `nat` do, from their text. Knows the options of
//! Linkerd's rules and similar ones; any other option is an error.

use std::str::FromStr;

use ipnet::IpNet;

use super::address;
use super::rules::Chain;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Protocol,
    Port,
    Source,
    Destination,
    /// 1 if the packet arrives or leaves through the interface `lo`, 0 otherwise.
    Loopback,
    Uid,
    Gid,
}

/// First packet of a connection: its fields as numbers, each at the index of its [`Field`]. `None`: the
/// packet has no such field, such as the UID of a packet that comes from outside.
pub type Packet = [Option<u128>; 7];

/// Both ends are included.
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

type Rule = (Vec<Condition>, Target);

/// The rules that packets can reach in a table `nat` of one address family, by chain.
#[derive(Clone, Debug, Default)]
pub struct Nat(Vec<(String, Vec<Rule>)>);

impl Nat {
    /// Reads lines of `iptables -S`.
    /// Fails if a rule that packets can reach has an unknown option, and names the rule.
    pub fn read(lines: &[String]) -> Result<Nat, String> {
        let mut nat = Nat::default();
        nat.add(lines, Chain::Prerouting.name())?;
        nat.add(lines, Chain::Output.name())?;
        Ok(nat)
    }

    /// Adds a chain, and those to which its rules jump. The kernel allows no loop.
    fn add(&mut self, lines: &[String], name: &str) -> Result<(), String> {
        let start = format!("-A {name} ");
        let mut rules = Vec::new();
        for line in lines.iter().filter(|line| line.starts_with(&start)) {
            let rule = rule(line).map_err(|why| format!("the rule {line}: {why}"))?;
            if let Target::Jump(chain) = &rule.1 {
                if !lines.contains(&format!("-N {chain}")) {
                    return Err(format!("the rule {line}: unknown target {chain}"));
                }
                if !self.0.iter().any(|(known, _)| known == chain) {
                    self.add(lines, chain)?;
                }
            }
            rules.push(rule);
        }
        self.0.push((name.to_owned(), rules));
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, rules)| rules.is_empty())
    }

    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter().flat_map(|(_, rules)| rules).flat_map(|(conditions, _)| conditions)
    }

    /// Returns the port to which the built-in chain `hook` redirects the connection of `packet`.
    pub fn redirected_to(&self, hook: Chain, packet: &Packet) -> Option<u16> {
        self.walk(hook.name(), packet).flatten()
    }

    /// `None` if the chain ends or returns.
    fn walk(&self, chain: &str, packet: &Packet) -> Option<Option<u16>> {
        let (_, rules) = self.0.iter().find(|(name, _)| name == chain)?;
        for (conditions, target) in rules {
            if !conditions.iter().all(|condition| condition.is_met(packet)) {
                continue;
            }
            match target {
                Target::Return => return None,
                Target::Accept => return Some(None),
                Target::Redirect(port) => return Some(Some(*port)),
                Target::Jump(chain) => match self.walk(chain, packet) {
                    None => {}
                    verdict => return verdict,
                },
            }
        }
        None
    }
}

impl Condition {
    fn is_met(&self, packet: &Packet) -> bool {
        packet[self.field as usize].is_some_and(|number| self.has(number)) != self.is_negated
    }

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
        let value = words.next().unwrap_or_default();
        let (field, ranges) = match option {
            "-m" if ["tcp", "udp", "multiport", "owner", "comment"].contains(&value) => continue,
            "--comment" => continue,
            "-j" => {
                target = Some(match value {
                    "RETURN" => Target::Return,
                    "ACCEPT" => Target::Accept,
                    "REDIRECT" if words.next() == Some("--to-ports") => {
                        Target::Redirect(number(words.next().unwrap_or_default())?)
                    }
                    chain => Target::Jump(chain.to_owned()),
                });
                continue;
            }
            "-p" if value == "tcp" => (Field::Protocol, vec![(TCP.into(), TCP.into())]),
            "-p" if value == "udp" => (Field::Protocol, vec![(UDP.into(), UDP.into())]),
            "-s" => (Field::Source, vec![subnet(value)?]),
            "-d" => (Field::Destination, vec![subnet(value)?]),
            "-i" | "-o" if value == "lo" => (Field::Loopback, vec![(1, 1)]),
            "--dport" | "--dports" => {
                let ranges = value.split(',').map(|ports| range::<u16>(ports, ':'));
                (Field::Port, ranges.collect::<Result<_, _>>()?)
            }
            "--uid-owner" => (Field::Uid, vec![range::<u32>(value, '-')?]),
            "--gid-owner" => (Field::Gid, vec![range::<u32>(value, '-')?]),
            _ => return Err(format!("unknown option {option} {value}")),
        };
        conditions.push(Condition { field, ranges, is_negated });
        is_negated = false;
    }
    Ok((conditions, target.ok_or("no target")?))
}

/// Splits a line at blanks outside quotes, and removes the quotes.
pub fn words(line: &str) -> Vec<String> {
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

/// Reads a number, or two with `separator` in between.
fn range<T: FromStr + Into<u128>>(text: &str, separator: char) -> Result<Range, String> {
    let (first, last) = text.split_once(separator).unwrap_or((text, text));
    let (first, last) = (number::<T>(first)?.into(), number::<T>(last)?.into());
    if first <= last { Ok((first, last)) } else { Err(format!("{text} is reversed")) }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid value {text}"))
}

fn subnet(text: &str) -> Result<Range, String> {
    let net: IpNet = number(text)?;
    let range = (address(net.network()), address(net.broadcast()));
    if net == net.trunc() { Ok(range) } else { Err(format!("{text} is not a subnet")) }
}
