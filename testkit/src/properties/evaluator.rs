//! Evaluates the rules of a table `nat` of iptables: tells to which port a packet is redirected, or
//! that the packet is discarded.
//! Knows the options of Linkerd's rules and similar options. Any other option is an error, so that
//! no condition of a rule is overlooked.

use std::str::FromStr;

use ipnet::IpNet;
use linkerd2_cni::redirect::address_number;
use linkerd2_cni::redirect::rules::{Chain, split_words};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Protocol,
    Port,
    Source,
    Destination,
    /// Name of the interface through which the packet arrives or leaves, as [`interface_number`].
    Interface,
    Uid,
    Gid,
}

/// Fields of the first packet of a connection as numbers, each at the index of its [`Field`].
/// `None`: the packet has no such field, such as the UID of a packet that comes from outside.
pub type Fields = [Option<u128>; 7];

/// The port of a packet that is discarded.
pub const DISCARDED: u16 = 0;

/// Returns the name of an interface, which has at most 15 bytes, as a number.
pub fn interface_number(name: &str) -> u128 {
    name.bytes().fold(0, |number, byte| number << 8 | u128::from(byte))
}

/// The first and the last number of a range.
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

/// What a chain decides about a packet.
enum Verdict {
    Accept,
    Redirect(u16),
    /// The chain has ended or returned, so the calling chain continues.
    Undecided,
}

/// The rules that packets can reach in a table `nat` of one address family, by chain.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<(String, Vec<Rule>)>);

impl Rules {
    /// Reads lines of `iptables -S`.
    /// Fails if a rule that packets can reach has an unknown option, and names the rule.
    pub fn read(lines: &[String]) -> Result<Rules, String> {
        let mut rules = Rules::default();
        rules.add_chain(lines, Chain::Prerouting.name())?;
        rules.add_chain(lines, Chain::Output.name())?;
        Ok(rules)
    }

    /// Adds a chain, and the chains to which its rules jump. Jumps do not form a loop, because the
    /// kernel allows none.
    fn add_chain(&mut self, lines: &[String], name: &str) -> Result<(), String> {
        let start = format!("-A {name} ");
        let mut rules = Vec::new();
        for line in lines.iter().filter(|line| line.starts_with(&start)) {
            let rule = parse_rule(line).map_err(|why| format!("the rule {line}: {why}"))?;
            if let Target::Jump(chain) = &rule.target {
                if !lines.contains(&format!("-N {chain}")) {
                    return Err(format!("the rule {line}: unknown target {chain}"));
                }
                if !self.0.iter().any(|(name, _)| name == chain) {
                    self.add_chain(lines, chain)?;
                }
            }
            rules.push(rule);
        }
        self.0.push((name.to_owned(), rules));
        Ok(())
    }

    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter().flat_map(|(_, rules)| rules).flat_map(|rule| &rule.conditions)
    }

    /// Returns the port to which the built-in chain `hook` redirects the packet, if it redirects
    /// it.
    pub fn redirected_to(&self, hook: Chain, packet: &Fields) -> Option<u16> {
        match self.verdict(hook.name(), packet) {
            Verdict::Redirect(port) => Some(port),
            Verdict::Accept | Verdict::Undecided => None,
        }
    }

    fn verdict(&self, chain: &str, packet: &Fields) -> Verdict {
        let Some((_, rules)) = self.0.iter().find(|(name, _)| name == chain) else {
            return Verdict::Undecided;
        };
        for Rule { conditions, target } in rules {
            if !conditions.iter().all(|condition| condition.is_met(packet)) {
                continue;
            }
            match target {
                Target::Return => return Verdict::Undecided,
                Target::Accept => return Verdict::Accept,
                Target::Redirect(port) => return Verdict::Redirect(*port),
                Target::Jump(chain) => match self.verdict(chain, packet) {
                    Verdict::Undecided => {}
                    decided => return decided,
                },
            }
        }
        Verdict::Undecided
    }
}

impl Condition {
    fn is_met(&self, packet: &Fields) -> bool {
        packet[self.field as usize].is_some_and(|number| self.contains(number)) != self.is_negated
    }

    pub fn contains(&self, number: u128) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

/// Parses a line `-A CHAIN ...`.
fn parse_rule(line: &str) -> Result<Rule, String> {
    let words = split_words(line);
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
                    "DNAT" if words.next() == Some("--to-destination") => {
                        Target::Redirect(destination_port(words.next().unwrap_or_default())?)
                    }
                    chain => Target::Jump(chain.to_owned()),
                });
                continue;
            }
            "-p" if value == "tcp" => (Field::Protocol, vec![(TCP.into(), TCP.into())]),
            "-p" if value == "udp" => (Field::Protocol, vec![(UDP.into(), UDP.into())]),
            "-s" => (Field::Source, vec![subnet(value)?]),
            "-d" => (Field::Destination, vec![subnet(value)?]),
            "-i" | "-o" if !value.ends_with('+') => {
                let number = interface_number(value);
                (Field::Interface, vec![(number, number)])
            }
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
    Ok(Rule { conditions, target: target.ok_or("no target")? })
}

/// Returns the port of a destination on the pod's loopback address. The kernel drops packets to
/// 0.0.0.0.
fn destination_port(destination: &str) -> Result<u16, String> {
    if destination == "0.0.0.0" {
        return Ok(DISCARDED);
    }
    match destination.split_once(':') {
        Some(("127.0.0.1", port)) => number(port),
        _ => Err(format!("unknown destination {destination}")),
    }
}

/// Parses a number, or two numbers with `separator` in between.
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
    let range = (address_number(net.network()), address_number(net.broadcast()));
    if net == net.trunc() { Ok(range) } else { Err(format!("{text} is not a subnet")) }
}
