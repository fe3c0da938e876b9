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

/// Fields of the first packet of a connection as numbers. `None`: the packet has no such field,
/// such as the UID of a packet that comes from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields([Option<u128>; FIELD_COUNT]);

/// Number of the variants of [`Field`].
const FIELD_COUNT: usize = 7;

impl Fields {
    fn get(&self, field: Field) -> Option<u128> {
        // An array, because a map would slow down the evaluation of millions of packets.
        self.0[field as usize]
    }

    pub fn set(&mut self, field: Field, value: Option<u128>) {
        self.0[field as usize] = value;
    }
}

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
        let is_in_range = packet.get(self.field).is_some_and(|number| self.contains(number));
        is_in_range != self.is_negated
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
    let mut conditions = Vec::new();
    let mut target = None;
    let mut is_negated = false;
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
                target = Some(parse_target(value, &mut words)?);
                continue;
            }
            "-p" if value == "tcp" => (Field::Protocol, vec![(TCP.into(), TCP.into())]),
            "-p" if value == "udp" => (Field::Protocol, vec![(UDP.into(), UDP.into())]),
            "-s" => (Field::Source, vec![parse_subnet(value)?]),
            "-d" => (Field::Destination, vec![parse_subnet(value)?]),
            "-i" | "-o" if !value.ends_with('+') => {
                let number = interface_number(value);
                (Field::Interface, vec![(number, number)])
            }
            "--dport" | "--dports" => {
                let ranges = value.split(',').map(|ports| parse_range::<u16>(ports, ':'));
                (Field::Port, ranges.collect::<Result<_, _>>()?)
            }
            "--uid-owner" => (Field::Uid, vec![parse_range::<u32>(value, '-')?]),
            "--gid-owner" => (Field::Gid, vec![parse_range::<u32>(value, '-')?]),
            _ => return Err(format!("unknown option {option} {value}")),
        };
        conditions.push(Condition { field, ranges, is_negated });
        is_negated = false;
    }
    Ok(Rule { conditions, target: target.ok_or("no target")? })
}

/// Parses the target of a rule. `options` are the words after the target's name.
fn parse_target<'a>(
    name: &str,
    options: &mut impl Iterator<Item = &'a str>,
) -> Result<Target, String> {
    match name {
        "RETURN" => Ok(Target::Return),
        "ACCEPT" => Ok(Target::Accept),
        "REDIRECT" if options.next() == Some("--to-ports") => {
            let port = parse_number(options.next().unwrap_or_default())?;
            Ok(Target::Redirect(port))
        }
        "DNAT" if options.next() == Some("--to-destination") => {
            let port = destination_port(options.next().unwrap_or_default())?;
            Ok(Target::Redirect(port))
        }
        chain => Ok(Target::Jump(chain.to_owned())),
    }
}

/// Returns the port of a destination on the pod's loopback address. The kernel drops packets to
/// 0.0.0.0.
fn destination_port(destination: &str) -> Result<u16, String> {
    if destination == "0.0.0.0" {
        return Ok(DISCARDED);
    }
    match destination.split_once(':') {
        Some(("127.0.0.1", port)) => parse_number(port),
        _ => Err(format!("unknown destination {destination}")),
    }
}

/// Parses a number, or two numbers with `separator` in between.
fn parse_range<T: FromStr + Into<u128>>(text: &str, separator: char) -> Result<Range, String> {
    let (first, last) = text.split_once(separator).unwrap_or((text, text));
    let first: u128 = parse_number::<T>(first)?.into();
    let last: u128 = parse_number::<T>(last)?.into();
    if first > last {
        return Err(format!("{text} is reversed"));
    }
    Ok((first, last))
}

fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid value {text}"))
}

fn parse_subnet(text: &str) -> Result<Range, String> {
    let net: IpNet = parse_number(text)?;
    if net != net.trunc() {
        return Err(format!("{text} is not a subnet"));
    }
    Ok((address_number(net.network()), address_number(net.broadcast())))
}
