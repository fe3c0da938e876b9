//! Renders rules as `nft list ruleset` lists those of the backend `native`. Pure.

use std::fmt::Write as _;

use super::{Chain, Family, Match, Redirect, Rule, Verdict, marked_rules};
use crate::ports::PortRange;

/// Chains in the order in which the backend creates them, with the line of a chain with a hook.
const CHAINS: [(Chain, &str); 4] = [
    (Chain::ProxyInitRedirect, ""),
    (Chain::ProxyInitOutput, ""),
    (Chain::Prerouting, "type nat hook prerouting priority dstnat + 1; policy accept;"),
    (Chain::Output, "type nat hook output priority -99; policy accept;"),
];

/// Renders the table of one address family. `families` are all families that get rules.
pub fn nft_listing(redirect: &Redirect, family: Family, families: &[Family]) -> String {
    let rules = marked_rules(redirect, family, families);
    let (table, address) = match family {
        Family::Ipv4 => ("ip", "ip"),
        Family::Ipv6 => ("ip6", "ip6"),
    };
    let chains: Vec<String> =
        CHAINS.iter().map(|(chain, hook)| chain_text(*chain, hook, &rules, address)).collect();
    format!("table {table} linkerd-cni {{\n{}}}\n", chains.join("\n"))
}

fn chain_text(chain: Chain, hook: &str, rules: &[Rule], address: &str) -> String {
    let mut text = format!("\tchain {} {{\n", chain.name());
    if !hook.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\t\t{hook}");
    }
    for rule in rules.iter().filter(|rule| rule.chain == chain) {
        for line in lines(rule, address) {
            let _ = writeln!(text, "\t\t{line}");
        }
    }
    text + "\t}\n"
}

/// Returns one line per port or range of the rule, else one line.
fn lines(rule: &Rule, address: &str) -> Vec<String> {
    let end = format!("{} comment \"{}\"", verdict(rule.verdict), rule.comment);
    let mut ports: Vec<PortRange> = Vec::new();
    let mut words = Vec::new();
    for condition in &rule.matches {
        match condition {
            Match::Ports(ranges) => ports.clone_from(ranges),
            Match::Port(port) => ports.push((*port).into()),
            // `nft` lists the protocol only if no port follows.
            Match::Tcp => {}
            Match::Source(net) if net.prefix_len() == net.max_prefix_len() => {
                words.push(format!("{address} saddr {}", net.addr()));
            }
            Match::Source(net) => words.push(format!("{address} saddr {net}")),
            Match::Uid(uid) => words.push(format!("meta skuid {uid}")),
            Match::Gid(gid) => words.push(format!("meta skgid {gid}")),
            Match::Loopback => words.push("oifname \"lo\"".to_owned()),
        }
    }
    if ports.is_empty() && rule.matches.contains(&Match::Tcp) {
        words.push("meta l4proto tcp".to_owned());
    }
    words.push(end);
    let rest = words.join(" ");
    match ports.is_empty() {
        true => vec![rest],
        false => ports.iter().map(|range| format!("tcp dport {} {rest}", port(*range))).collect(),
    }
}

fn port(range: PortRange) -> String {
    match range.first == range.last {
        true => range.first.to_string(),
        false => format!("{}-{}", range.first, range.last),
    }
}

fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Return => "return".to_owned(),
        Verdict::Redirect(port) => format!("redirect to :{port}"),
        Verdict::Jump(chain) => format!("jump {}", chain.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Subnet;

    #[test]
    fn the_listing_is_what_the_nft_program_lists_in_the_plugins_test() {
        let snapshot = include_str!(
            "../tests/plugin/snapshots/plugin__native__native_rules_are_in_a_table_of_their_own.snap"
        );
        let (_, listed) = snapshot.split_once("---\ntable").unwrap();
        let subnet = |text: &str| Subnet { net: text.parse().unwrap(), text: text.to_owned() };
        let redirect = Redirect {
            proxy_gid: Some(2103),
            skip_inbound: vec![4191.into(), 4190.into()],
            skip_outbound: vec![443.into(), PortRange { first: 8000, last: 8010 }],
            skip_subnets: vec![subnet("10.0.0.0/12"), subnet("fd00::/8")],
            ..Redirect::example()
        };
        let both = [Family::Ipv4, Family::Ipv6];
        let both = both.map(|family| nft_listing(&redirect, family, &both));
        assert_eq!(both.concat().trim_end(), format!("table{listed}").trim_end());
    }
}
