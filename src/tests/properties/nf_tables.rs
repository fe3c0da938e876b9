//! A model of nf_tables: takes the netlink messages that the backend `native` sends, and decides on
//! packets like the kernel. Numbers are those of `linux/netfilter/nf_tables.h`. The model knows
//! the expressions that the redirect rules use. It is stricter than the kernel: an unknown attribute,
//! or a comparison of another length than the loaded value, is an error.

mod expression;
mod set;

use std::collections::BTreeMap;

use linkerd2_cni::netlink::socket::{CREATE, EXCLUSIVE, Message};
use linkerd2_cni::redirect::Family;

use crate::packet::{Hook, Packet};
use expression::{Expression, Registers, Step};
use set::Set;

/// Tables by address family and name, and their chains by name.
#[derive(Clone, Debug, Default)]
pub struct Ruleset {
    tables: BTreeMap<(u8, String), BTreeMap<String, Chain>>,
    /// Sets of the transaction that no rule uses yet, by family, table and ID.
    sets: BTreeMap<(u8, String, u32), Set>,
}

#[derive(Clone, Debug)]
struct Chain {
    /// Number of the hook, for a base chain.
    hook: Option<u32>,
    rules: Vec<Vec<Expression>>,
}

impl Ruleset {
    /// Applies the messages as one transaction: all of them or none.
    pub fn apply(&mut self, messages: &[Message]) -> Result<(), String> {
        let mut next = self.clone();
        for (index, message) in messages.iter().enumerate() {
            next.request(message).map_err(|problem| format!("message {index}: {problem}"))?;
        }
        if !next.sets.is_empty() {
            return Err("a set without a rule".to_owned());
        }
        *self = next;
        Ok(())
    }

    fn request(
        &mut self,
        Message { kind, family, flags, attributes }: &Message,
    ) -> Result<(), String> {
        match kind {
            0 => {
                let [name] = named(&attributes.0, [1])?;
                let known = self.tables.contains_key(&(*family, text(name)?));
                if known && flags & EXCLUSIVE != 0 {
                    return Err("table exists".to_owned());
                }
                self.tables.entry((*family, text(name)?)).or_default();
            }
            2 => {
                let [name] = named(&attributes.0, [1])?;
                self.tables.remove(&(*family, text(name)?)).ok_or("no such table")?;
            }
            3 => {
                let (table, name, chain) = chain(&attributes.0)?;
                let chains = self.tables.get_mut(&(*family, table)).ok_or("no such table")?;
                if flags & CREATE == 0 {
                    return Err("chain without the flag CREATE".to_owned());
                }
                chains.entry(name).or_insert(chain);
            }
            6 => {
                let [table, chain, expressions, _comment] = named(&attributes.0, [1, 2, 4, 7])?;
                let table = (*family, text(table)?);
                let rule = expression::rule(expressions, &mut |id| {
                    self.sets.remove(&(table.0, table.1.clone(), id))
                })?;
                let chains = self.tables.get_mut(&table).ok_or("no such table")?;
                for expression in &rule {
                    if let Expression::Jump(target) = expression {
                        chains.get(target).ok_or("jump to a missing chain")?;
                    }
                }
                chains.get_mut(&text(chain)?).ok_or("no such chain")?.rules.push(rule);
            }
            9 => {
                let (table, id, set) = set::new(&attributes.0)?;
                let known = self.tables.contains_key(&(*family, table.clone()));
                if !known
                    || flags & CREATE == 0
                    || self.sets.insert((*family, table, id), set).is_some()
                {
                    return Err("no such table, or no new set".to_owned());
                }
            }
            12 => {
                let (table, id, elements) = set::elements(&attributes.0)?;
                let set = self.sets.get_mut(&(*family, table, id)).ok_or("no such set")?;
                if flags & CREATE == 0 {
                    return Err("elements without the flag CREATE".to_owned());
                }
                set.add(elements)?;
            }
            other => return Err(format!("unknown message type {other}")),
        }
        Ok(())
    }

    /// Returns the port to which the connection of `packet` is redirected.
    pub fn redirected_to(&self, packet: &Packet) -> Option<u16> {
        let family = match packet.family() {
            Family::Ipv4 => 2,
            Family::Ipv6 => 10,
        };
        let hook = match packet.hook {
            Hook::Prerouting => 0,
            Hook::Output => 3,
        };
        let tables = self.tables.iter().filter(|((of, _), _)| *of == family);
        let chains =
            tables.flat_map(|(_, chains)| chains.values().map(move |chain| (chains, chain)));
        let mut hooked = chains.filter(|(_, chain)| chain.hook == Some(hook));
        hooked.find_map(|(chains, chain)| walk(chains, chain, packet))
    }
}

/// Walks through a chain. `None` means that its end, or a `return`, was reached.
fn walk(chains: &BTreeMap<String, Chain>, chain: &Chain, packet: &Packet) -> Option<u16> {
    for rule in &chain.rules {
        let mut registers = Registers::default();
        for expression in rule {
            match registers.step(expression, packet) {
                Step::Continue => {}
                Step::Break => break,
                Step::Return => return None,
                Step::Redirect(port) => return Some(port),
                Step::Jump(target) => {
                    if let Some(port) = walk(chains, &chains[target], packet) {
                        return Some(port);
                    }
                    break;
                }
            }
        }
    }
    None
}

/// Reads table, name and content of a chain, of type `nat` if it is a base chain.
fn chain(bytes: &[u8]) -> Result<(String, String, Chain), String> {
    if let Ok([table, name]) = named(bytes, [1, 3]) {
        return Ok((text(table)?, text(name)?, Chain { hook: None, rules: Vec::new() }));
    }
    let [table, name, hook, kind] = named(bytes, [1, 3, 4, 7])?;
    let [number, priority] = named(hook, [1, 2])?;
    if text(kind)? != "nat" || self::number(priority)? as i32 <= -200 {
        return Err("not a base chain of type nat after conntrack".to_owned());
    }
    let hook = Some(self::number(number)?);
    Ok((text(table)?, text(name)?, Chain { hook, rules: Vec::new() }))
}

/// Reads a sequence of netlink attributes: types, without flags, and values.
fn attributes(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, String> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let [l0, l1, k0, k1, ..] = *bytes else {
            return Err("truncated attribute".to_owned());
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..length).ok_or("invalid length")?;
        let padding = bytes.get(length..length.next_multiple_of(4)).ok_or("no padding")?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err("padding is not zero".to_owned());
        }
        // 0x8000 marks nested attributes.
        found.push((u16::from_ne_bytes([k0, k1]) & 0x7fff, value));
        bytes = &bytes[length.next_multiple_of(4)..];
    }
    Ok(found)
}

/// Reads a sequence of exactly the attributes `kinds`.
fn named<const N: usize>(bytes: &[u8], kinds: [u16; N]) -> Result<[&[u8]; N], String> {
    let found = attributes(bytes)?;
    let mut values = [&[][..]; N];
    for (value, kind) in values.iter_mut().zip(kinds) {
        let known = found.iter().find(|(found, _)| *found == kind);
        *value = known.ok_or(format!("no attribute {kind}"))?.1;
    }
    if found.len() == N { Ok(values) } else { Err("unknown attributes".to_owned()) }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    let text = bytes.strip_suffix(b"\0").ok_or("text without NUL")?;
    String::from_utf8(text.to_vec()).map_err(|error| error.to_string())
}

fn number(bytes: &[u8]) -> Result<u32, String> {
    bytes.try_into().map(u32::from_be_bytes).map_err(|_| "not a number of 4 bytes".to_owned())
}
