//! Renders rules as `nft list ruleset` lists those of the backend `native`. Pure.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{Chain, Match, Rule, Verdict, marked_rules, nft};
use crate::redirect::{Family, Redirect};

/// Chains in the order in which the backend creates them, with the line of a chain with a hook.
const CHAINS: [(Chain, &str); 4] = [
    (Chain::ProxyInitRedirect, ""),
    (Chain::ProxyInitOutput, ""),
    (Chain::Prerouting, "type nat hook prerouting priority dstnat + 1; policy accept;"),
    (Chain::Output, "type nat hook output priority -99; policy accept;"),
];

/// The condition [`Match::Tcp`].
const TCP: &str = "meta l4proto tcp";

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
    for run in nft::runs(rules).filter(|run| run[0].chain == chain) {
        let _ = writeln!(text, "\t\t{}", line(run, address));
    }
    text + "\t}\n"
}

/// Returns the line of a run's rule.
fn line(run: &[Rule], address: &str) -> String {
    let mut words = Vec::new();
    for condition in &run[0].matches {
        match condition {
            Match::Ports(_) | Match::Port(_) => {
                // `nft` lists the protocol only if no port follows.
                words.retain(|word| word != TCP);
                words.push(format!("tcp dport {}", list(run, port_range)));
            }
            Match::Tcp => words.push(TCP.to_owned()),
            Match::Source(_) => {
                let sources = list(run, |range| address_range(range, address));
                words.push(format!("{address} saddr {sources}"));
            }
            Match::Uid(uid) => words.push(format!("meta skuid {uid}")),
            Match::Gid(gid) => words.push(format!("meta skgid {gid}")),
            Match::Loopback => words.push("oifname \"lo\"".to_owned()),
        }
    }
    words.push(format!("{} comment \"{}\"", verdict(run[0].verdict), nft::comment(run)));
    words.join(" ")
}

/// Lists the ranges of a run: a set, unless the rule compares with one value.
fn list(run: &[Rule], text: impl Fn((u128, u128)) -> String) -> String {
    let expressions = nft::expressions(run);
    let texts: Vec<String> = nft::ranges(run).into_iter().map(text).collect();
    match expressions.iter().any(|expression| matches!(expression, nft::Expression::In(_))) {
        true => format!("{{ {} }}", texts.join(", ")),
        false => texts.concat(),
    }
}

fn port_range((first, last): (u128, u128)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Lists an address, a subnet, or a range that is no subnet.
fn address_range((first, last): (u128, u128), family: &str) -> String {
    let address = |number: u128| match family {
        "ip" => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    let width = if family == "ip" { 32 } else { 128 };
    let prefix = width - (first ^ last).count_ones();
    let (first, last) = (address(first), address(last));
    match IpNet::new(first, prefix as u8) {
        Ok(_) if first == last => first.to_string(),
        Ok(net) if (net.network(), net.broadcast()) == (first, last) => net.to_string(),
        _ => format!("{first}-{last}"),
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
    use crate::redirect::Subnet;
    use crate::redirect::ports::PortRange;

    #[test]
    fn the_listing_is_what_the_nft_program_lists_in_the_plugins_test() {
        let snapshot = include_str!(
            "../../tests/plugin/snapshots/plugin__native__native_rules_are_in_a_table_of_their_own.snap"
        );
        let (_, listed) = snapshot.split_once("---\ntable").unwrap();
        let subnet = |text: &str| Subnet { net: text.parse().unwrap(), text: text.to_owned() };
        let redirect = Redirect {
            proxy_gid: Some(2103),
            skip_inbound: vec![4191.into(), 4190.into()],
            skip_outbound: vec![443.into(), PortRange { first: 8000, last: 8010 }, 442.into()],
            skip_subnets: vec![
                subnet("10.0.0.0/12"),
                subnet("192.168.1.7/32"),
                subnet("172.16.0.0/16"),
                subnet("172.17.0.0/16"),
                subnet("172.18.0.0/16"),
                subnet("10.1.0.0/16"),
                subnet("fd00::/8"),
                subnet("192.0.2.0/31"),
            ],
            ..Redirect::example()
        };
        let both = [Family::Ipv4, Family::Ipv6];
        let both = both.map(|family| nft_listing(&redirect, family, &both));
        assert_eq!(both.concat().trim_end(), format!("table{listed}").trim_end());
    }
}
