//! Decodes the netlink messages of the backend `native` into iptables rules with the same meaning.
//!
//! Numbers are those of `linux/netfilter/nf_tables.h`. The decoder is stricter than the kernel: it
//! rejects unknown attributes, and comparisons whose length differs from that of the loaded value.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Subnets, Ipv6Subnets};
use linkerd2_cni::netlink::socket::{CREATE, Message};
use linkerd2_cni::redirect::Family;

/// Message types, `NFT_MSG_NEWTABLE` to `NFT_MSG_NEWSETELEM`.
const NEW_TABLE: i32 = 0;
const NEW_CHAIN: i32 = 3;
const NEW_RULE: i32 = 6;
const NEW_SET: i32 = 9;
const NEW_SET_ELEMENTS: i32 = 12;

const TABLE: &str = "linkerd-cni";
/// `__set%d`, which the kernel replaces with a free name.
const SET_NAME: &str = "__set%d";
/// `NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | NFT_SET_INTERVAL`.
const SET_FLAGS: u32 = 7;
/// Types and lengths of the keys that `nft` can display: IPv4 address, IPv6 address, port.
const KEYS: [(u32, u32); 3] = [(7, 4), (8, 16), (13, 2)];
/// Register for all values except [`PORT_REGISTER`] and [`VERDICT_REGISTER`].
const REGISTER: u32 = 1;
/// Register for the port of a destination that also has an address.
const PORT_REGISTER: u32 = 2;
const VERDICT_REGISTER: u32 = 0;
const RETURN: u32 = -5i32 as u32;
const DROP: u32 = 0;
const JUMP: u32 = -3i32 as u32;

/// Returns the chains and rules of one family, as `iptables -S` lists them. A rule that looks up an
/// address in a set becomes one line for each subnet.
pub fn decode_lines(messages: &[Message], family: Family) -> Result<Vec<String>, String> {
    let family_number = match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    };
    let mut decoder = Decoder::default();
    for (index, message) in messages.iter().enumerate() {
        if message.family == family_number {
            decoder
                .read_message(message)
                .map_err(|problem| format!("message {index}: {problem}"))?;
        }
    }
    if !decoder.sets.is_empty() {
        return Err("a set without a rule".to_owned());
    }
    Ok(decoder.lines)
}

/// A set of addresses or ports.
struct Set {
    /// Length of each key in bytes.
    key_length: usize,
    /// The keys. A flag marks the end of a range, which the range does not contain.
    keys: Vec<(u128, bool)>,
}

/// Sets by ID.
type Sets = BTreeMap<u32, Set>;

#[derive(Default)]
struct Decoder {
    lines: Vec<String>,
    /// Sets that no rule uses yet.
    sets: Sets,
}

impl Decoder {
    fn read_message(&mut self, message: &Message) -> Result<(), String> {
        let bytes = &message.attributes.0;
        if message.flags & CREATE == 0 {
            return Err("no flag CREATE".to_owned());
        }
        match message.kind {
            NEW_TABLE => expect_text(parse_exact_attributes(bytes, [1])?[0], TABLE),
            NEW_CHAIN => self.read_chain(bytes),
            NEW_RULE => self.read_rule(bytes),
            NEW_SET => self.read_set(bytes),
            NEW_SET_ELEMENTS => self.read_elements(bytes),
            other => Err(format!("unknown message type {other}")),
        }
    }

    fn read_chain(&mut self, bytes: &[u8]) -> Result<(), String> {
        let has_hook = parse_attributes(bytes)?.iter().any(|(kind, _)| *kind == 4);
        let [table, name] =
            if has_hook { read_base_chain(bytes)? } else { read_regular_chain(bytes)? };
        expect_text(table, TABLE)?;
        self.lines.push(format!("-N {}", parse_text(name)?));
        Ok(())
    }

    fn read_set(&mut self, bytes: &[u8]) -> Result<(), String> {
        let [table, name, flags, kind, length, id] =
            parse_exact_attributes(bytes, [1, 2, 3, 4, 5, 10])?;
        expect_text(table, TABLE)?;
        expect_text(name, SET_NAME)?;
        expect_number(flags, SET_FLAGS)?;
        let kind = parse_number(kind)?;
        let length = parse_number(length)?;
        if !KEYS.contains(&(kind, length)) {
            return Err("not a set of addresses or ports".to_owned());
        }
        let set = Set { key_length: length as usize, keys: Vec::new() };
        if self.sets.insert(parse_number(id)?, set).is_some() {
            return Err("two sets with one ID".to_owned());
        }
        Ok(())
    }

    /// Reads the elements of a set. They must be in ascending order. Each start of a range must be
    /// followed by its end, unless the range ends with the largest key.
    fn read_elements(&mut self, bytes: &[u8]) -> Result<(), String> {
        let [table, name, list, id] = parse_exact_attributes(bytes, [1, 2, 3, 4])?;
        expect_text(table, TABLE)?;
        expect_text(name, SET_NAME)?;
        let set = self.sets.get_mut(&parse_number(id)?).ok_or("no such set")?;
        for (kind, element) in parse_attributes(list)? {
            let (key, is_end) = match parse_exact_attributes(element, [1, 3]) {
                Ok([key, flags]) => {
                    expect_number(flags, 1)?;
                    (key, true)
                }
                Err(_) => (parse_exact_attributes(element, [1])?[0], false),
            };
            let key = parse_value(key)?;
            let is_in_order = match set.keys.last() {
                Some((last, was_end)) => *last < from_big_endian(key) && *was_end != is_end,
                None => !is_end,
            };
            if kind != 1 || key.len() != set.key_length || !is_in_order {
                return Err(format!("misplaced element {key:?}"));
            }
            set.keys.push((from_big_endian(key), is_end));
        }
        Ok(())
    }

    fn read_rule(&mut self, bytes: &[u8]) -> Result<(), String> {
        let [table, chain, expressions, _comment] = parse_exact_attributes(bytes, [1, 2, 4, 7])?;
        expect_text(table, TABLE)?;
        let chain = parse_text(chain)?;
        if !self.lines.contains(&format!("-N {chain}")) {
            return Err("no such chain".to_owned());
        }
        let mut rules = vec![format!("-A {chain}")];
        let mut decoder = RuleDecoder::new(&mut self.sets);
        for (kind, element) in parse_attributes(expressions)? {
            if kind != 1 || rules.iter().any(|rule| rule.contains(" -j ")) {
                return Err("no expression, or one after the verdict".to_owned());
            }
            let [name, data] = parse_exact_attributes(element, [1, 2])?;
            let alternatives = decoder.decode_expression(&parse_text(name)?, data)?;
            if !alternatives.is_empty() {
                rules = append_alternatives(&rules, &alternatives);
            }
        }
        self.lines.extend(rules);
        Ok(())
    }
}

/// Reads the table and name of a chain without a hook.
fn read_regular_chain(bytes: &[u8]) -> Result<[&[u8]; 2], String> {
    let [table, name] = parse_exact_attributes(bytes, [1, 3])?;
    if ["PREROUTING", "OUTPUT"].contains(&parse_text(name)?.as_str()) {
        return Err("no hook".to_owned());
    }
    Ok([table, name])
}

/// Reads the table and name of a base chain of type `nat`.
fn read_base_chain(bytes: &[u8]) -> Result<[&[u8]; 2], String> {
    let [table, name, hook, policy, kind] = parse_exact_attributes(bytes, [1, 3, 4, 5, 7])?;
    let [hook, priority] = parse_exact_attributes(hook, [1, 2])?;
    let hook = parse_number(hook)?;
    expect_text(name, if hook == 0 { "PREROUTING" } else { "OUTPUT" })?;
    // After conntrack, and before `iptables -t nat`.
    let is_first_nat = (-199..-100).contains(&(parse_number(priority)? as i32));
    if ![0, 3].contains(&hook) || !is_first_nat {
        return Err("not a base chain between conntrack and iptables".to_owned());
    }
    expect_text(kind, "nat")?;
    expect_number(policy, 1)?;
    Ok([table, name])
}

/// Returns every combination of a rule and one of the alternatives.
fn append_alternatives(rules: &[String], alternatives: &[String]) -> Vec<String> {
    let mut combinations = Vec::new();
    for rule in rules {
        for alternative in alternatives {
            combinations.push(format!("{rule} {alternative}"));
        }
    }
    combinations
}

/// Decodes the expressions of one rule.
struct RuleDecoder<'s, 'b> {
    sets: &'s mut Sets,
    /// The iptables option for the loaded value, and the length of the value.
    loaded: (&'static str, usize),
    /// Mask of the loaded value.
    mask: Option<&'b [u8]>,
    /// Register and number of the port to redirect to.
    port: Option<(u32, u128)>,
    /// Address to redirect to.
    target: Option<IpAddr>,
}

impl<'s, 'b> RuleDecoder<'s, 'b> {
    fn new(sets: &'s mut Sets) -> Self {
        RuleDecoder { sets, loaded: ("", 0), mask: None, port: None, target: None }
    }

    /// Decodes an expression into iptables options. Returns none if the expression only loads a
    /// value, and one alternative for each subnet if it looks up an address in a set.
    fn decode_expression(&mut self, name: &str, data: &'b [u8]) -> Result<Vec<String>, String> {
        match name {
            "meta" | "payload" => {
                self.loaded = decode_load(name, data)?;
                self.mask = None;
                Ok(Vec::new())
            }
            "bitwise" => {
                self.mask = Some(self.decode_bitmask(data)?);
                Ok(Vec::new())
            }
            "cmp" => Ok(vec![self.decode_comparison(data)?]),
            "range" => Ok(vec![self.decode_port_range(data)?]),
            "lookup" => self.decode_lookup(data),
            "immediate" => self.decode_immediate(data),
            "redir" => Ok(vec![self.decode_redirect(data)?]),
            "nat" => Ok(vec![self.decode_destination_nat(data)?]),
            other => Err(format!("unknown expression {other}")),
        }
    }

    fn decode_bitmask(&self, data: &'b [u8]) -> Result<&'b [u8], String> {
        let [from, to, length, and, xor] = parse_exact_attributes(data, [1, 2, 3, 4, 5])?;
        expect_number(from, REGISTER)?;
        expect_number(to, REGISTER)?;
        expect_number(length, self.loaded.1 as u32)?;
        if from_big_endian(self.operand(xor)?) != 0 {
            return Err("inverted bits".to_owned());
        }
        self.operand(and)
    }

    fn decode_comparison(&self, data: &'b [u8]) -> Result<String, String> {
        let [register, operator, operand] = parse_exact_attributes(data, [1, 2, 3])?;
        expect_number(register, REGISTER)?;
        expect_number(operator, 0)?;
        let (option, _) = self.loaded;
        Ok(format!("{option} {}", print_operand(option, self.operand(operand)?, self.mask)?))
    }

    fn decode_port_range(&self, data: &'b [u8]) -> Result<String, String> {
        let [register, operator, first, last] = parse_exact_attributes(data, [1, 2, 3, 4])?;
        expect_number(register, REGISTER)?;
        expect_number(operator, 0)?;
        let first = from_big_endian(self.operand(first)?);
        let last = from_big_endian(self.operand(last)?);
        let (option, _) = self.loaded;
        Ok(format!("--dport {}", print_ports(option, &[(first, last)])?))
    }

    fn decode_lookup(&mut self, data: &'b [u8]) -> Result<Vec<String>, String> {
        let [name, register, id, flags] = parse_exact_attributes(data, [1, 2, 4, 5])?;
        expect_text(name, SET_NAME)?;
        expect_number(register, REGISTER)?;
        expect_number(flags, 0)?;
        // A set belongs to one rule.
        let set = self.sets.remove(&parse_number(id)?).ok_or("no such set")?;
        let (option, loaded_length) = self.loaded;
        if set.key_length != loaded_length || self.mask.is_some() || set.keys.is_empty() {
            return Err("no keys, or keys of another length".to_owned());
        }
        let ranges = pair_ranges(&set);
        if option == "-s" || option == "-d" {
            let subnets = split_into_subnets(&ranges, set.key_length);
            return Ok(subnets.iter().map(|net| format!("{option} {net}")).collect());
        }
        Ok(vec![format!("--dports {}", print_ports(option, &ranges)?)])
    }

    /// Decodes an expression that loads a port, an address or a verdict.
    fn decode_immediate(&mut self, data: &'b [u8]) -> Result<Vec<String>, String> {
        let [register, data] = parse_exact_attributes(data, [1, 2])?;
        let register = parse_number(register)?;
        if register == VERDICT_REGISTER {
            return Ok(vec![decode_verdict(data)?]);
        }
        match (register, parse_value(data)?) {
            (REGISTER | PORT_REGISTER, bytes @ [_, _]) => {
                self.port = Some((register, from_big_endian(bytes)));
            }
            (REGISTER, bytes @ [_, _, _, _]) => {
                self.target = Some(to_address(from_big_endian(bytes), 4));
            }
            other => return Err(format!("neither port nor address: {other:?}")),
        }
        Ok(Vec::new())
    }

    fn decode_redirect(&self, data: &[u8]) -> Result<String, String> {
        let [register] = parse_exact_attributes(data, [1])?;
        expect_number(register, REGISTER)?;
        match (self.port, self.target) {
            (Some((REGISTER, port)), None) => Ok(format!("-j REDIRECT --to-ports {port}")),
            other => Err(format!("redirect to {other:?}")),
        }
    }

    fn decode_destination_nat(&self, data: &[u8]) -> Result<String, String> {
        let [kind, family, to, to_port] = parse_exact_attributes(data, [1, 2, 3, 5])?;
        // `NFT_NAT_DNAT` and `NFPROTO_IPV4`.
        expect_number(kind, 1)?;
        expect_number(family, 2)?;
        expect_number(to, REGISTER)?;
        expect_number(to_port, PORT_REGISTER)?;
        match (self.port, self.target) {
            (Some((PORT_REGISTER, port)), Some(target)) => {
                Ok(format!("-j DNAT --to-destination {target}:{port}"))
            }
            other => Err(format!("destination {other:?}")),
        }
    }

    /// Returns the value that an expression compares with the loaded value. Both must have the same
    /// length.
    fn operand(&self, bytes: &'b [u8]) -> Result<&'b [u8], String> {
        let operand = parse_value(bytes)?;
        if operand.len() != self.loaded.1 {
            return Err("lengths of values differ".to_owned());
        }
        Ok(operand)
    }
}

fn decode_verdict(data: &[u8]) -> Result<String, String> {
    let [verdict] = parse_exact_attributes(data, [2])?;
    if let Ok([code]) = parse_exact_attributes(verdict, [1]) {
        if parse_number(code)? == DROP {
            return Ok("-j DNAT --to-destination 0.0.0.0".to_owned());
        }
        expect_number(code, RETURN)?;
        return Ok("-j RETURN".to_owned());
    }
    let [code, chain] = parse_exact_attributes(verdict, [1, 2])?;
    expect_number(code, JUMP)?;
    Ok(format!("-j {}", parse_text(chain)?))
}

/// Returns the iptables option for the loaded value, and the length of the value.
fn decode_load(name: &str, data: &[u8]) -> Result<(&'static str, usize), String> {
    if name == "meta" {
        let [register, key] = parse_exact_attributes(data, [1, 2])?;
        expect_number(register, REGISTER)?;
        return match parse_number(key)? {
            6 => Ok(("-i", 16)),
            7 => Ok(("-o", 16)),
            10 => Ok(("-m owner --uid-owner", 4)),
            11 => Ok(("-m owner --gid-owner", 4)),
            16 => Ok(("-p", 1)),
            other => Err(format!("unknown property {other}")),
        };
    }
    let [register, base, offset, length] = parse_exact_attributes(data, [1, 2, 3, 4])?;
    expect_number(register, REGISTER)?;
    // The network or transport header, the offset of the field in the header, and its length.
    match (parse_number(base)?, parse_number(offset)?, parse_number(length)?) {
        (2, 2, 2) => Ok(("--dport", 2)),
        (1, 12, 4) => Ok(("-s", 4)),
        (1, 16, 4) => Ok(("-d", 4)),
        (1, 8, 16) => Ok(("-s", 16)),
        (1, 24, 16) => Ok(("-d", 16)),
        other => Err(format!("unknown field {other:?}")),
    }
}

/// Returns the value of a comparison, as iptables prints it.
fn print_operand(option: &str, value: &[u8], mask: Option<&[u8]>) -> Result<String, String> {
    Ok(match (option, mask) {
        ("-s" | "-d", Some(mask)) => {
            let prefix = ipnet::ip_mask_to_prefix(to_address(from_big_endian(mask), value.len()));
            let prefix = prefix.map_err(|error| error.to_string())?;
            format!("{}/{prefix}", to_address(from_big_endian(value), value.len()))
        }
        ("-p", None) if value == [6] => "tcp".to_owned(),
        ("-i" | "-o", None) => String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
        ("--dport", None) => from_big_endian(value).to_string(),
        (_, None) if option.contains("owner") => {
            let id: [u8; 4] = value.try_into().map_err(|_| "not an ID")?;
            u32::from_ne_bytes(id).to_string()
        }
        _ => return Err(format!("{option} is compared with {value:?}, mask {mask:?}")),
    })
}

/// Returns the first and last key of each range in a set. Starts and ends of ranges alternate. The
/// last range may have no end.
fn pair_ranges(set: &Set) -> Vec<(u128, u128)> {
    let largest = u128::MAX >> (128 - 8 * set.key_length);
    let mut ranges = Vec::new();
    for pair in set.keys.chunks(2) {
        let (first, _) = pair[0];
        let last = match pair.get(1) {
            Some((end, _)) => end - 1,
            None => largest,
        };
        ranges.push((first, last));
    }
    ranges
}

fn print_ports(option: &str, ranges: &[(u128, u128)]) -> Result<String, String> {
    if option != "--dport" {
        return Err(format!("{option} is compared with ranges"));
    }
    let texts: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}:{last}")).collect();
    Ok(texts.join(","))
}

/// Splits ranges of addresses into subnets.
fn split_into_subnets(ranges: &[(u128, u128)], length: usize) -> Vec<String> {
    let mut subnets = Vec::new();
    for (first, last) in ranges {
        match (to_address(*first, length), to_address(*last, length)) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                subnets.extend(Ipv4Subnets::new(first, last, 0).map(|net| net.to_string()));
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                subnets.extend(Ipv6Subnets::new(first, last, 0).map(|net| net.to_string()));
            }
            mixed => panic!("addresses of two families: {mixed:?}"),
        }
    }
    subnets
}

fn to_address(number: u128, length: usize) -> IpAddr {
    if length == 4 {
        return Ipv4Addr::from_bits(number as u32).into();
    }
    Ipv6Addr::from_bits(number).into()
}

fn from_big_endian(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Reads a sequence of netlink attributes. Returns their types, without flags, and their values.
fn parse_attributes(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, String> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let header = bytes.get(..4).ok_or("truncated attribute")?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let value = bytes.get(4..length).ok_or("invalid length")?;
        let padding = bytes.get(length..length.next_multiple_of(4)).ok_or("no padding")?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err("padding is not zero".to_owned());
        }
        // 0x8000 marks nested attributes.
        found.push((kind & 0x7fff, value));
        bytes = &bytes[length.next_multiple_of(4)..];
    }
    Ok(found)
}

/// Reads a sequence of netlink attributes that must have exactly the types `kinds`, in any order.
fn parse_exact_attributes<const N: usize>(
    bytes: &[u8],
    kinds: [u16; N],
) -> Result<[&[u8]; N], String> {
    let found = parse_attributes(bytes)?;
    let mut values = [&[][..]; N];
    for (value, kind) in values.iter_mut().zip(kinds) {
        let attribute = found.iter().find(|(found_kind, _)| *found_kind == kind);
        *value = attribute.ok_or(format!("no attribute {kind}"))?.1;
    }
    if found.len() != N {
        return Err("unknown attributes".to_owned());
    }
    Ok(values)
}

fn parse_value(bytes: &[u8]) -> Result<&[u8], String> {
    parse_exact_attributes(bytes, [1]).map(|[value]| value)
}

fn parse_text(bytes: &[u8]) -> Result<String, String> {
    let text = bytes.strip_suffix(b"\0").ok_or("text without NUL")?;
    String::from_utf8(text.to_vec()).map_err(|error| error.to_string())
}

fn parse_number(bytes: &[u8]) -> Result<u32, String> {
    bytes.try_into().map(u32::from_be_bytes).map_err(|_| "not a number of 4 bytes".to_owned())
}

fn expect_text(bytes: &[u8], expected: &str) -> Result<(), String> {
    let found = parse_text(bytes)?;
    if found == expected { Ok(()) } else { Err(format!("{found} instead of {expected}")) }
}

fn expect_number(bytes: &[u8], expected: u32) -> Result<(), String> {
    let found = parse_number(bytes)?;
    if found == expected { Ok(()) } else { Err(format!("{found} instead of {expected}")) }
}
