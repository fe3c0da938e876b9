//! Reads the netlink messages that the backend `native` sends as rules of iptables with the same
//! meaning. Numbers are those of `linux/netfilter/nf_tables.h`. Stricter than the kernel: an
//! unknown attribute, or a comparison of another length than the loaded value, is an error.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Subnets, Ipv6Subnets};
use linkerd2_cni::netlink::socket::{CREATE, Message};
use linkerd2_cni::redirect::Family;

const TABLE: &str = "linkerd-cni";
/// `__set%d`, which the kernel replaces with a free name.
const SET_NAME: &str = "__set%d";
/// `NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | NFT_SET_INTERVAL`.
const SET_FLAGS: u32 = 7;
/// Types and lengths of keys that `nft` lists: IPv4 address, IPv6 address, port.
const KEYS: [(u32, u32); 3] = [(7, 4), (8, 16), (13, 2)];
/// The register that the redirect rules use, and that of a port beside an address.
const REGISTER: u32 = 1;
const PORT_REGISTER: u32 = 2;
const VERDICT_REGISTER: u32 = 0;
const RETURN: u32 = -5i32 as u32;
const DROP: u32 = 0;
const JUMP: u32 = -3i32 as u32;

/// Returns chains and rules of one family, as `iptables -S` lists them. A rule that looks an
/// address up in a set is one line for each subnet.
pub fn lines(messages: &[Message], family: Family) -> Result<Vec<String>, String> {
    let number = match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    };
    let mut reader = Reader::default();
    for (index, message) in messages.iter().enumerate().filter(|(_, it)| it.family == number) {
        reader.read(message).map_err(|problem| format!("message {index}: {problem}"))?;
    }
    if reader.sets.is_empty() { Ok(reader.lines) } else { Err("a set without a rule".to_owned()) }
}

#[derive(Default)]
struct Reader {
    lines: Vec<String>,
    /// Sets that no rule uses yet, by ID: length of keys in bytes, and keys. A flag marks the end
    /// of a range, which the range does not contain.
    sets: BTreeMap<u32, (usize, Vec<(u128, bool)>)>,
}

impl Reader {
    fn read(&mut self, message: &Message) -> Result<(), String> {
        let bytes = &message.attributes.0;
        if message.flags & CREATE == 0 {
            return Err("no flag CREATE".to_owned());
        }
        match message.kind {
            0 => is_text(named(bytes, [1])?[0], TABLE),
            3 => self.chain(bytes),
            6 => self.rule(bytes),
            9 => {
                let [table, name, flags, kind, length, id] = named(bytes, [1, 2, 3, 4, 5, 10])?;
                is_text(table, TABLE)?;
                is_text(name, SET_NAME)?;
                is_number(flags, SET_FLAGS)?;
                let key = (number(kind)?, number(length)?);
                let set = (key.1 as usize, Vec::new());
                match KEYS.contains(&key) && self.sets.insert(number(id)?, set).is_none() {
                    true => Ok(()),
                    false => Err("not a new set of addresses or ports".to_owned()),
                }
            }
            12 => self.elements(bytes),
            other => Err(format!("unknown message type {other}")),
        }
    }

    /// Reads a chain, of type `nat` if it is a base chain.
    fn chain(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (table, name) = match named(bytes, [1, 3]) {
            Ok([_, name]) if ["PREROUTING", "OUTPUT"].contains(&&*text(name)?) => {
                return Err("no hook".to_owned());
            }
            Ok([table, name]) => (table, name),
            Err(_) => {
                let [table, name, hook, policy, kind] = named(bytes, [1, 3, 4, 5, 7])?;
                let [hook, priority] = named(hook, [1, 2])?;
                is_text(name, if number(hook)? == 0 { "PREROUTING" } else { "OUTPUT" })?;
                // After conntrack, and before `iptables -t nat`.
                let is_first_nat = (-199..-100).contains(&(number(priority)? as i32));
                if ![0, 3].contains(&number(hook)?) || !is_first_nat {
                    return Err("not a base chain between conntrack and iptables".to_owned());
                }
                is_text(kind, "nat")?;
                is_number(policy, 1)?;
                (table, name)
            }
        };
        is_text(table, TABLE)?;
        self.lines.push(format!("-N {}", text(name)?));
        Ok(())
    }

    /// Reads elements. Each is above the last one, and an end follows each start, unless the range
    /// has the largest key.
    fn elements(&mut self, bytes: &[u8]) -> Result<(), String> {
        let [table, name, list, id] = named(bytes, [1, 2, 3, 4])?;
        is_text(table, TABLE)?;
        is_text(name, SET_NAME)?;
        let (length, set) = self.sets.get_mut(&number(id)?).ok_or("no such set")?;
        for (kind, element) in attributes(list)? {
            let (key, is_end) = match named(element, [1, 3]) {
                Ok([key, flags]) => is_number(flags, 1).map(|()| (key, true))?,
                Err(_) => (named(element, [1])?[0], false),
            };
            let key = value(key)?;
            let place = match set.last() {
                Some((last, was_end)) => *last < big_endian(key) && *was_end != is_end,
                None => !is_end,
            };
            if kind != 1 || key.len() != *length || !place {
                return Err(format!("misplaced element {key:?}"));
            }
            set.push((big_endian(key), is_end));
        }
        Ok(())
    }

    fn rule(&mut self, bytes: &[u8]) -> Result<(), String> {
        let [table, chain, expressions, _comment] = named(bytes, [1, 2, 4, 7])?;
        is_text(table, TABLE)?;
        let chain = text(chain)?;
        if !self.lines.contains(&format!("-N {chain}")) {
            return Err("no such chain".to_owned());
        }
        let mut rules = vec![format!("-A {chain}")];
        // Option and length of the loaded value, and its mask.
        let (mut loaded, mut mask, mut port, mut target) = (("", 0), None, None, None);
        for (kind, element) in attributes(expressions)? {
            let [name, data] = named(element, [1, 2])?;
            let (name, option) = (text(name)?, loaded.0);
            let compared = |bytes| value(bytes).and_then(|value| of_length(value, loaded.1));
            let conditions = match &*name {
                _ if kind != 1 || rules.iter().any(|rule| rule.contains(" -j ")) => {
                    return Err("no expression, or one behind the verdict".to_owned());
                }
                "meta" | "payload" => {
                    (loaded, mask) = (load(&name, data)?, None);
                    continue;
                }
                "bitwise" => {
                    let [from, to, length, and, xor] = named(data, [1, 2, 3, 4, 5])?;
                    for (number, wanted) in
                        [(from, REGISTER), (to, REGISTER), (length, loaded.1 as u32)]
                    {
                        is_number(number, wanted)?;
                    }
                    if big_endian(compared(xor)?) != 0 {
                        return Err("inverted bits".to_owned());
                    }
                    mask = Some(compared(and)?);
                    continue;
                }
                "cmp" => {
                    let [register, operator, data] = named(data, [1, 2, 3])?;
                    is_number(register, REGISTER)?;
                    is_number(operator, 0)?;
                    vec![format!("{option} {}", equal(option, compared(data)?, mask)?)]
                }
                "range" => {
                    let [register, operator, first, last] = named(data, [1, 2, 3, 4])?;
                    is_number(register, REGISTER)?;
                    is_number(operator, 0)?;
                    let ports = (big_endian(compared(first)?), big_endian(compared(last)?));
                    vec![format!("--dport {}", list(option, &[ports])?)]
                }
                "lookup" => {
                    let [name, register, id, flags] = named(data, [1, 2, 4, 5])?;
                    is_text(name, SET_NAME)?;
                    is_number(register, REGISTER)?;
                    is_number(flags, 0)?;
                    // A set belongs to one rule.
                    let (length, set) = self.sets.remove(&number(id)?).ok_or("no such set")?;
                    if length != loaded.1 || mask.is_some() || set.is_empty() {
                        return Err("no keys, or keys of another length".to_owned());
                    }
                    let ranges = ranges(&set, length);
                    match option {
                        "-s" | "-d" => subnets(&ranges, length)
                            .into_iter()
                            .map(|net| format!("{option} {net}"))
                            .collect(),
                        _ => vec![format!("--dports {}", list(option, &ranges)?)],
                    }
                }
                "immediate" => {
                    let [register, data] = named(data, [1, 2])?;
                    if [REGISTER, PORT_REGISTER].contains(&number(register)?) {
                        match value(data)? {
                            bytes @ [_, _] => port = Some((number(register)?, big_endian(bytes))),
                            bytes @ [_, _, _, _] if number(register)? == REGISTER => {
                                target = Some(address(big_endian(bytes), 4));
                            }
                            other => return Err(format!("neither port nor address: {other:?}")),
                        }
                        continue;
                    }
                    is_number(register, VERDICT_REGISTER)?;
                    let [verdict] = named(data, [2])?;
                    vec![match named(verdict, [1]) {
                        Ok([code]) if number(code)? == DROP => {
                            "-j DNAT --to-destination 0.0.0.0".to_owned()
                        }
                        Ok([code]) => is_number(code, RETURN).map(|()| "-j RETURN".to_owned())?,
                        Err(_) => {
                            let [code, chain] = named(verdict, [1, 2])?;
                            is_number(code, JUMP)?;
                            format!("-j {}", text(chain)?)
                        }
                    }]
                }
                "redir" => {
                    let [register] = named(data, [1])?;
                    is_number(register, REGISTER)?;
                    match (port, target) {
                        (Some((REGISTER, port)), None) => {
                            vec![format!("-j REDIRECT --to-ports {port}")]
                        }
                        other => return Err(format!("redirect to {other:?}")),
                    }
                }
                "nat" => {
                    // Kind 1 is a change of the destination, family 2 is IPv4.
                    let [kind, family, to, to_port] = named(data, [1, 2, 3, 5])?;
                    for (number, wanted) in
                        [(kind, 1), (family, 2), (to, REGISTER), (to_port, PORT_REGISTER)]
                    {
                        is_number(number, wanted)?;
                    }
                    match (port, target) {
                        (Some((PORT_REGISTER, port)), Some(target)) => {
                            vec![format!("-j DNAT --to-destination {target}:{port}")]
                        }
                        other => return Err(format!("destination {other:?}")),
                    }
                }
                other => return Err(format!("unknown expression {other}")),
            };
            rules = rules
                .iter()
                .flat_map(|rule| conditions.iter().map(move |it| format!("{rule} {it}")))
                .collect();
        }
        self.lines.extend(rules);
        Ok(())
    }
}

/// Returns the option that compares the loaded value, and the length of the value.
fn load(name: &str, data: &[u8]) -> Result<(&'static str, usize), String> {
    if name == "meta" {
        let [register, key] = named(data, [1, 2])?;
        is_number(register, REGISTER)?;
        return match number(key)? {
            6 => Ok(("-i", 16)),
            7 => Ok(("-o", 16)),
            10 => Ok(("-m owner --uid-owner", 4)),
            11 => Ok(("-m owner --gid-owner", 4)),
            16 => Ok(("-p", 1)),
            other => Err(format!("unknown property {other}")),
        };
    }
    let [register, base, offset, length] = named(data, [1, 2, 3, 4])?;
    is_number(register, REGISTER)?;
    // Header of network or transport, offset of the field, and its length.
    match (number(base)?, number(offset)?, number(length)?) {
        (2, 2, 2) => Ok(("--dport", 2)),
        (1, 12, 4) => Ok(("-s", 4)),
        (1, 16, 4) => Ok(("-d", 4)),
        (1, 8, 16) => Ok(("-s", 16)),
        (1, 24, 16) => Ok(("-d", 16)),
        other => Err(format!("unknown field {other:?}")),
    }
}

/// Returns the value that a comparison requires, as iptables prints it.
fn equal(option: &str, value: &[u8], mask: Option<&[u8]>) -> Result<String, String> {
    Ok(match (option, mask) {
        ("-s" | "-d", Some(mask)) => {
            let prefix = ipnet::ip_mask_to_prefix(address(big_endian(mask), value.len()));
            let prefix = prefix.map_err(|error| error.to_string())?;
            format!("{}/{prefix}", address(big_endian(value), value.len()))
        }
        ("-p", None) if value == [6] => "tcp".to_owned(),
        ("-i" | "-o", None) => String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
        ("--dport", None) => big_endian(value).to_string(),
        (_, None) if option.contains("owner") => {
            let id: [u8; 4] = value.try_into().map_err(|_| "not an ID")?;
            u32::from_ne_bytes(id).to_string()
        }
        _ => return Err(format!("{option} is compared with {value:?}, mask {mask:?}")),
    })
}

/// Returns the ranges of a set.
fn ranges(set: &[(u128, bool)], length: usize) -> Vec<(u128, u128)> {
    let largest = u128::MAX >> (128 - 8 * length);
    let ends = set.iter().skip(1).step_by(2).map(|(end, _)| end - 1).chain([largest]);
    set.iter().step_by(2).map(|(start, _)| *start).zip(ends).collect()
}

fn list(option: &str, ranges: &[(u128, u128)]) -> Result<String, String> {
    let texts = ranges.iter().map(|(first, last)| format!("{first}:{last}"));
    match option {
        "--dport" => Ok(texts.collect::<Vec<_>>().join(",")),
        _ => Err(format!("{option} is compared with ranges")),
    }
}

fn subnets(ranges: &[(u128, u128)], length: usize) -> Vec<String> {
    let of_range = |(first, last): &(u128, u128)| -> Vec<String> {
        match (address(*first, length), address(*last, length)) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                Ipv4Subnets::new(first, last, 0).map(|net| net.to_string()).collect()
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                Ipv6Subnets::new(first, last, 0).map(|net| net.to_string()).collect()
            }
            mixed => panic!("addresses of two families: {mixed:?}"),
        }
    };
    ranges.iter().flat_map(of_range).collect()
}

fn address(number: u128, length: usize) -> IpAddr {
    if length == 4 {
        return Ipv4Addr::from_bits(number as u32).into();
    }
    Ipv6Addr::from_bits(number).into()
}

fn big_endian(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
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

fn value(bytes: &[u8]) -> Result<&[u8], String> {
    named(bytes, [1]).map(|[value]| value)
}

fn of_length(value: &[u8], length: usize) -> Result<&[u8], String> {
    if value.len() == length { Ok(value) } else { Err("lengths of values differ".to_owned()) }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    let text = bytes.strip_suffix(b"\0").ok_or("text without NUL")?;
    String::from_utf8(text.to_vec()).map_err(|error| error.to_string())
}

fn number(bytes: &[u8]) -> Result<u32, String> {
    bytes.try_into().map(u32::from_be_bytes).map_err(|_| "not a number of 4 bytes".to_owned())
}

fn is_text(bytes: &[u8], wanted: &str) -> Result<(), String> {
    let found = text(bytes)?;
    if found == wanted { Ok(()) } else { Err(format!("{found} instead of {wanted}")) }
}

fn is_number(bytes: &[u8], wanted: u32) -> Result<(), String> {
    let found = number(bytes)?;
    if found == wanted { Ok(()) } else { Err(format!("{found} instead of {wanted}")) }
}
