//! Expressions of nf_tables rules, and the steps of their evaluation.

use std::net::IpAddr;

use super::set::{self, Set};
use super::{attributes, named, number, text};
use crate::packet::Packet;

/// The register that the redirect rules use, 16 bytes.
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;

#[derive(Clone, Debug)]
pub enum Expression {
    /// Loads the property with this key.
    Meta(u32),
    Payload {
        base: u32,
        offset: usize,
        length: usize,
    },
    Bitwise {
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Equal(Vec<u8>),
    Between(Vec<u8>, Vec<u8>),
    In(Set),
    Immediate(Vec<u8>),
    /// Redirects to the port in the register.
    Redirect,
    Return,
    Jump(String),
}

/// What an expression does to the evaluation.
pub enum Step<'a> {
    Continue,
    /// Ends the rule.
    Break,
    Return,
    Jump(&'a str),
    Redirect(u16),
}

/// The value in the register that the redirect rules use.
#[derive(Default)]
pub struct Registers(Vec<u8>);

impl Registers {
    pub fn step<'a>(&mut self, expression: &'a Expression, packet: &Packet) -> Step<'a> {
        let continues = match expression {
            Expression::Meta(key) => self.load(meta(*key, packet)),
            Expression::Payload { base, offset, length } => {
                let header = if *base == 1 { network(packet) } else { transport(packet) };
                self.load(header.get(*offset..offset + length).map(<[u8]>::to_vec))
            }
            Expression::Bitwise { mask, xor } => {
                for (byte, (mask, xor)) in self.0.iter_mut().zip(mask.iter().zip(xor)) {
                    *byte = (*byte & mask) ^ xor;
                }
                true
            }
            Expression::Equal(value) => self.0 == *value,
            Expression::Between(first, last) => (first..=last).contains(&&self.0),
            Expression::In(set) => set.contains(&self.0),
            Expression::Immediate(value) => self.load(Some(value.clone())),
            Expression::Redirect => {
                return Step::Redirect(u16::from_be_bytes([self.0[0], self.0[1]]));
            }
            Expression::Return => return Step::Return,
            Expression::Jump(chain) => return Step::Jump(chain),
        };
        if continues { Step::Continue } else { Step::Break }
    }

    /// Loads a value. A missing value ends the rule.
    fn load(&mut self, value: Option<Vec<u8>>) -> bool {
        self.0 = value.unwrap_or_default();
        !self.0.is_empty()
    }
}

/// Returns a property of a packet. Packets without a socket have no user.
fn meta(key: u32, packet: &Packet) -> Option<Vec<u8>> {
    match key {
        7 => {
            let mut name = packet.output.as_bytes().to_vec();
            name.resize(16, 0);
            Some(name)
        }
        10 => packet.socket.map(|(uid, _)| uid.to_ne_bytes().to_vec()),
        11 => packet.socket.map(|(_, gid)| gid.to_ne_bytes().to_vec()),
        _ => Some(vec![packet.protocol]),
    }
}

/// Returns the IP header, in which all but version, protocol and addresses is zero.
fn network(packet: &Packet) -> Vec<u8> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = [0; 20];
            (header[0], header[9]) = (0x45, packet.protocol);
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            header.to_vec()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = [0; 40];
            (header[0], header[6]) = (0x60, packet.protocol);
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
            header.to_vec()
        }
        mixed => panic!("addresses of two families: {mixed:?}"),
    }
}

/// Returns the start of the TCP or UDP header.
fn transport(packet: &Packet) -> Vec<u8> {
    let mut header = packet.source_port.to_be_bytes().to_vec();
    header.extend(packet.destination_port.to_be_bytes());
    header.resize(8, 0);
    header
}

/// Reads the expressions of a rule, and checks that lengths of values fit. `take_set` takes the set with
/// an ID from the transaction.
pub fn rule(
    bytes: &[u8],
    take_set: &mut dyn FnMut(u32) -> Option<Set>,
) -> Result<Vec<Expression>, String> {
    let mut rule = Vec::new();
    let mut loaded = 0;
    for (kind, element) in attributes(bytes)? {
        let [name, data] = named(element, [1, 2])?;
        let expression = expression(&text(name)?, data, take_set)?;
        let lengths = match &expression {
            Expression::Meta(key) => {
                loaded = meta_length(*key)?;
                vec![]
            }
            Expression::Payload { length, .. } => {
                loaded = *length;
                vec![]
            }
            Expression::Immediate(value) => {
                loaded = value.len();
                vec![]
            }
            Expression::Bitwise { mask, xor } => vec![mask.len(), xor.len()],
            Expression::Equal(value) => vec![value.len()],
            Expression::Between(first, last) => vec![first.len(), last.len()],
            Expression::In(set) => vec![set.length],
            Expression::Redirect => vec![2],
            Expression::Return | Expression::Jump(_) => vec![],
        };
        if kind != 1 || lengths.iter().any(|length| *length != loaded) {
            return Err("lengths of values differ".to_owned());
        }
        rule.push(expression);
    }
    Ok(rule)
}

fn meta_length(key: u32) -> Result<usize, String> {
    match key {
        7 => Ok(16),
        10 | 11 => Ok(4),
        16 => Ok(1),
        _ => Err(format!("unknown property {key}")),
    }
}

fn expression(
    name: &str,
    data: &[u8],
    take_set: &mut dyn FnMut(u32) -> Option<Set>,
) -> Result<Expression, String> {
    Ok(match name {
        "meta" => {
            let [register, key] = named(data, [1, 2])?;
            expect(register, REGISTER)?;
            Expression::Meta(number(key)?)
        }
        "payload" => {
            let [register, base, offset, length] = named(data, [1, 2, 3, 4])?;
            expect(register, REGISTER)?;
            let base = number(base)?;
            if ![1, 2].contains(&base) {
                return Err(format!("unknown header {base}"));
            }
            let (offset, length) = (number(offset)? as usize, number(length)? as usize);
            Expression::Payload { base, offset, length }
        }
        "bitwise" => {
            let [from, to, length, mask, xor] = named(data, [1, 2, 3, 4, 5])?;
            expect(from, REGISTER)?;
            expect(to, REGISTER)?;
            let (mask, xor) = (value(mask)?, value(xor)?);
            expect(length, mask.len() as u32)?;
            Expression::Bitwise { mask, xor }
        }
        "cmp" => {
            let [register, operator, data] = named(data, [1, 2, 3])?;
            expect(register, REGISTER)?;
            expect(operator, 0)?;
            Expression::Equal(value(data)?)
        }
        "range" => {
            let [register, operator, first, last] = named(data, [1, 2, 3, 4])?;
            expect(register, REGISTER)?;
            expect(operator, 0)?;
            Expression::Between(value(first)?, value(last)?)
        }
        "lookup" => {
            let [name, register, id, flags] = named(data, [1, 2, 4, 5])?;
            expect(register, REGISTER)?;
            expect(flags, 0)?;
            let id = set::reference(name, id)?;
            Expression::In(take_set(id).ok_or("no such set, or one of another rule")?)
        }
        "immediate" => immediate(data)?,
        "redir" => {
            let [register] = named(data, [1])?;
            expect(register, REGISTER)?;
            Expression::Redirect
        }
        other => return Err(format!("unknown expression {other}")),
    })
}

/// Reads an expression that loads a value or sets a verdict.
fn immediate(data: &[u8]) -> Result<Expression, String> {
    let [register, data] = named(data, [1, 2])?;
    if number(register)? == REGISTER {
        return value(data).map(Expression::Immediate);
    }
    expect(register, VERDICT_REGISTER)?;
    let [verdict] = named(data, [2])?;
    if let Ok([code]) = named(verdict, [1]) {
        expect(code, -5i32 as u32)?;
        return Ok(Expression::Return);
    }
    let [code, chain] = named(verdict, [1, 2])?;
    expect(code, -3i32 as u32)?;
    text(chain).map(Expression::Jump)
}

fn value(bytes: &[u8]) -> Result<Vec<u8>, String> {
    named(bytes, [1]).map(|[value]| value.to_vec())
}

fn expect(bytes: &[u8], wanted: u32) -> Result<(), String> {
    let found = number(bytes)?;
    if found == wanted { Ok(()) } else { Err(format!("{found} instead of {wanted}")) }
}
