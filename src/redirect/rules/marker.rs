//! The marker, which records the redirect from which a pod's rules were generated. Chart values and
//! annotations may change while the pod runs, but the pod keeps its rules.
//!
//! The marker is part of the comments of the jumps to Linkerd's chains, for example
//! `linkerd-cni/1 ip=46 in=4143 out=4140 uid=2102 skip-in=4190-4191,9990`. It ends with ` guessed`
//! if the pod object was not read.

use super::{Chain, ListedRules, Rule, Verdict, jump_rules, rules};
use crate::redirect::interfaces::Interface;
use crate::redirect::ports::PortRange;
use crate::redirect::{Family, Redirect, RuleSpec, Subnet};

/// Prefix of a marker, with its version. Increase the version whenever a redirect gets different
/// rules than before. Otherwise the rules of pods that started earlier would look damaged.
const START: &str = "linkerd-cni/1 ";

/// Separates a comment from a marker of any version.
const SEPARATOR: &str = " linkerd-cni/";

/// Maximum length of a marker in bytes, without [`GUESSED`]. A comment of iptables has at most 255
/// bytes. The user data of an nf_tables rule has at most 256 bytes, including headers.
const LIMIT: usize = 200;

/// Suffix of the marker if the pod object was not read.
const GUESSED: &str = " guessed";

/// Returns [`rules`] with the marker, as they are written to the kernel. `families` are all address
/// families that get rules.
pub fn marked_rules(redirect: &Redirect, family: Family, families: &[Family]) -> Vec<Rule> {
    let marker = marker(redirect, families);
    let mut rules = rules(redirect, family);
    for rule in rules.iter_mut().filter(|rule| matches!(rule.verdict, Verdict::Jump(_))) {
        rule.comment = format!("{} {marker}", rule.comment);
    }
    rules
}

/// Returns the marker for the rules of `redirect` in these families. If it is too long for a
/// comment, the marker contains only a digest.
pub fn marker(redirect: &Redirect, families: &[Family]) -> String {
    let mut marker = format!("{START}{}", fields(redirect, families).join(" "));
    if marker.len() > LIMIT {
        marker = format!("{START}digest={:016x}", digest(&marker));
    }
    if redirect.is_guessed {
        marker += GUESSED;
    }
    marker
}

/// Returns the fields `key=value` of the marker. Leaves out keys without a value.
fn fields(redirect: &Redirect, families: &[Family]) -> Vec<String> {
    let mut fields = vec![
        format!("ip={}", family_digits(families)),
        format!("in={}", redirect.inbound_port),
        format!("out={}", redirect.outbound_port),
    ];
    for (key, id) in [("uid", redirect.proxy_uid), ("gid", redirect.proxy_gid)] {
        if let Some(id) = id {
            fields.push(format!("{key}={id}"));
        }
    }
    let ports: Vec<String> = redirect.ports_to_redirect.iter().map(u16::to_string).collect();
    for (key, values) in [
        ("to", ports),
        ("skip-in", range_texts(&redirect.skip_inbound)),
        ("skip-out", range_texts(&redirect.skip_outbound)),
        ("skip-from", subnet_texts(&redirect.skip_subnets)),
        ("skip-to", subnet_texts(&redirect.skip_outbound_subnets)),
        ("inner", interface_names(&redirect.inner_interfaces)),
    ] {
        if !values.is_empty() {
            fields.push(format!("{key}={}", values.join(",")));
        }
    }
    fields
}

fn family_digits(families: &[Family]) -> String {
    let digits = families.iter().map(|family| match family {
        Family::Ipv4 => '4',
        Family::Ipv6 => '6',
    });
    digits.collect()
}

fn range_texts(ranges: &[PortRange]) -> Vec<String> {
    ranges.iter().map(PortRange::annotation_text).collect()
}

fn subnet_texts(subnets: &[Subnet]) -> Vec<String> {
    subnets.iter().map(|subnet| subnet.text.clone()).collect()
}

fn interface_names(interfaces: &[Interface]) -> Vec<String> {
    interfaces.iter().map(|interface| interface.name().to_owned()).collect()
}

/// Returns the FNV-1a hash, which does not change with the version of the compiler. It need not
/// withstand attacks, because a pod that can forge its marker can also change its rules.
pub fn digest(text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// Parses a marker. `None`: the marker has only a digest, has another version, or is not exactly
/// as [`marker`] writes it.
pub fn parse_marker(text: &str) -> Option<RuleSpec> {
    let mut families = None;
    let mut redirect = Redirect { is_guessed: is_guessed(text), ..Redirect::default() };
    let fields = text.strip_prefix(START)?;
    for field in fields.strip_suffix(GUESSED).unwrap_or(fields).split(' ') {
        match field.split_once('=')? {
            ("ip", "4") => families = Some(Family::IPV4),
            ("ip", "46") => families = Some(Family::ALL),
            ("in", port) => redirect.inbound_port = port.parse().ok()?,
            ("out", port) => redirect.outbound_port = port.parse().ok()?,
            ("uid", uid) => redirect.proxy_uid = Some(uid.parse().ok()?),
            ("gid", gid) => redirect.proxy_gid = Some(gid.parse().ok()?),
            ("to", ports) => redirect.ports_to_redirect = parse_ports(ports)?,
            ("skip-in", ranges) => redirect.skip_inbound = parse_ranges(ranges)?,
            ("skip-out", ranges) => redirect.skip_outbound = parse_ranges(ranges)?,
            ("skip-from", subnets) => redirect.skip_subnets = parse_subnets(subnets)?,
            ("skip-to", subnets) => redirect.skip_outbound_subnets = parse_subnets(subnets)?,
            ("inner", names) => redirect.inner_interfaces = parse_interfaces(names)?,
            _ => return None,
        }
    }
    let families = families?;
    if marker(&redirect, families) != text {
        return None;
    }
    Some(RuleSpec { redirect, families })
}

fn parse_ports(list: &str) -> Option<Vec<u16>> {
    list.split(',').map(|port| port.parse().ok()).collect()
}

fn parse_ranges(list: &str) -> Option<Vec<PortRange>> {
    list.split(',').map(|range| PortRange::parse(range).ok()).collect()
}

fn parse_subnets(list: &str) -> Option<Vec<Subnet>> {
    list.split(',').map(Subnet::parse).collect()
}

fn parse_interfaces(list: &str) -> Option<Vec<Interface>> {
    list.split(',').map(|name| Interface::parse(name).ok()).collect()
}

/// Returns true if the marker says that the pod object was not read. Works for digests too.
pub fn is_guessed(marker: &str) -> bool {
    marker.ends_with(GUESSED)
}

/// Splits a listed comment into the comment that [`rules`] sets, and the marker.
pub fn split_comment(comment: &str) -> (&str, Option<&str>) {
    match comment.find(SEPARATOR) {
        Some(end) => (&comment[..end], Some(&comment[end + 1..])),
        None => (comment, None),
    }
}

/// Returns true if rules with these comments redirect inbound and outbound connections, whatever
/// their settings are. Both jumps must exist, Linkerd's chains must contain only Linkerd's rules,
/// and the last rule of each of these chains must redirect.
pub fn is_redirecting(comments: &ListedRules<String>) -> bool {
    for jump in jump_rules() {
        let listed = &comments[jump.chain as usize];
        if !listed.iter().any(|comment| split_comment(comment).0 == jump.comment) {
            return false;
        }
    }
    Chain::LINKERD.iter().all(|&chain| ends_with_redirect(&comments[chain as usize]))
}

/// Returns true if a chain with these comments contains only Linkerd's rules, and the last one
/// redirects.
fn ends_with_redirect(comments: &[String]) -> bool {
    let Some(last) = comments.last() else {
        return false;
    };
    let is_only_linkerds = comments.iter().all(|comment| comment.starts_with("proxy-init/"));
    is_only_linkerds && last.starts_with("proxy-init/redirect-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_one_readable_line_of_limited_length() {
        let redirect = Redirect {
            proxy_gid: Some(2103),
            ports_to_redirect: vec![8080],
            skip_inbound: vec![PortRange { first: 4190, last: 4191 }, 9990.into()],
            skip_outbound: vec![443.into()],
            skip_subnets: vec![Subnet::parse("192.168.1.7/24").unwrap()],
            skip_outbound_subnets: vec![Subnet::parse("fd00::/8").unwrap()],
            inner_interfaces: vec![Interface::parse("docker0").unwrap()],
            ..Redirect::example()
        };
        let both = Family::ALL;
        let text = marker(&redirect, both);
        assert_eq!(
            text,
            "linkerd-cni/1 ip=46 in=4143 out=4140 uid=2102 gid=2103 to=8080 \
             skip-in=4190-4191,9990 skip-out=443 skip-from=192.168.1.7/24 skip-to=fd00::/8 \
             inner=docker0"
        );
        assert_eq!(
            parse_marker(&text),
            Some(RuleSpec { redirect: redirect.clone(), families: both })
        );
        let guessed = Redirect { is_guessed: true, ..redirect };
        assert_eq!(marker(&guessed, both), format!("{text} guessed"));
        let spec = RuleSpec { redirect: guessed, families: both };
        assert_eq!(parse_marker(&format!("{text} guessed")), Some(spec));
        let skip_outbound = (1..=100).map(PortRange::from).collect();
        let long = Redirect { skip_outbound, is_guessed: true, ..Redirect::example() };
        let text = marker(&long, both);
        assert_eq!(text, "linkerd-cni/1 digest=b8da3cfeb85a2ebb guessed");
        assert_ne!(text, marker(&long, &[Family::Ipv4]));
        assert_eq!(parse_marker(&text), None);
        let longest = marked_rules(&long, Family::Ipv4, both);
        assert!(longest.iter().all(|rule| rule.comment.len() <= 250));
    }

    #[test]
    fn markers_that_this_version_does_not_write_are_not_parsed() {
        let text = marker(&Redirect::example(), &[Family::Ipv4]);
        assert!(parse_marker(&text).is_some());
        for other in [
            text.replace("/1 ", "/2 "),
            text.replace(" in=4143", ""),
            text.replace("4143", "04143"),
            text.replace("4143", "70000"),
            text.replace("ip=4 ", "ip=6 "),
            text.replace("ip=4 ", ""),
            format!("{text} skip-out="),
            format!("{text} skip-from=10.0.0.0"),
            format!("{text} skip-to=10.0.0.0/8 skip-from=10.0.0.0/8"),
            format!("{text} inner=docker+"),
            format!("{text} more=1"),
            format!("{text} guessed guessed"),
            format!("{text} guessed uid=2102"),
            format!("{text} "),
            format!("{text} uid=2102"),
            String::new(),
        ] {
            assert_eq!(parse_marker(&other), None, "{other}");
        }
    }

    #[test]
    fn rules_with_a_missing_or_foreign_rule_do_not_count_as_redirecting() {
        let mut complete = ListedRules::<String>::default();
        for rule in rules(&Redirect::example(), Family::Ipv4) {
            complete[rule.chain as usize].push(rule.comment);
        }
        assert!(is_redirecting(&complete));
        for chain in Chain::ALL {
            let mut comments = complete.clone();
            comments[chain as usize].pop();
            assert!(!is_redirecting(&comments), "{chain:?}");
            let mut comments = complete.clone();
            comments[chain as usize].insert(0, String::new());
            assert_eq!(is_redirecting(&comments), !Chain::LINKERD.contains(&chain), "{chain:?}");
        }
        assert!(!is_redirecting(&Default::default()));
    }
}
