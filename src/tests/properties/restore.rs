//! Reads a script of `iptables-restore` back into rules, as iptables would take it.

use linkerd2_cni::redirect::ports::PortRange;
use linkerd2_cni::redirect::rules::{Chain, Match, Rule, Verdict};

/// The rules that `script` adds to table `nat`, after making our chains, in one transaction.
pub fn rules(script: &str) -> Vec<Rule> {
    let body = script
        .strip_prefix("*nat\n")
        .and_then(|rest| rest.strip_suffix("COMMIT\n"))
        .expect("one transaction on table nat");
    let (chains, rules): (Vec<&str>, Vec<&str>) =
        body.lines().partition(|line| !line.starts_with("-A "));
    assert_eq!(chains.len(), 2, "{script}");
    rules.into_iter().map(rule).collect()
}

fn rule(line: &str) -> Rule {
    let (conditions, rest) = line.split_once(" -m comment --comment \"").expect("a comment");
    let (comment, target) = rest.split_once("\" -j ").expect("a target");
    let mut words = conditions.split(' ').skip(1);
    let chain = chain(words.next().expect("a chain"));
    let words: Vec<&str> = words.collect();
    Rule { chain, matches: matches(&words), verdict: verdict(target), comment: comment.to_owned() }
}

fn chain(name: &str) -> Chain {
    match name {
        "PREROUTING" => Chain::Prerouting,
        "OUTPUT" => Chain::Output,
        "PROXY_INIT_REDIRECT" => Chain::ProxyInitRedirect,
        "PROXY_INIT_OUTPUT" => Chain::ProxyInitOutput,
        other => panic!("unknown chain: {other}"),
    }
}

fn matches(words: &[&str]) -> Vec<Match> {
    let (found, rest) = match words {
        [] => return Vec::new(),
        ["-p", "tcp", rest @ ..] => (Match::Tcp, rest),
        ["-m", "multiport", "--dports", ports, rest @ ..] => (Match::Ports(ranges(ports)), rest),
        ["-m", "tcp", "--dport", port, rest @ ..] => (Match::Port(port.parse().unwrap()), rest),
        ["-s", net, rest @ ..] => (Match::Source(net.parse().unwrap()), rest),
        ["-m", "owner", "--uid-owner", id, rest @ ..] => (Match::Uid(id.parse().unwrap()), rest),
        ["-m", "owner", "--gid-owner", id, rest @ ..] => (Match::Gid(id.parse().unwrap()), rest),
        ["-o", "lo", rest @ ..] => (Match::Loopback, rest),
        other => panic!("unknown condition: {other:?}"),
    };
    let mut all = vec![found];
    all.extend(matches(rest));
    all
}

/// `80,100:200`; multiport takes fifteen, a range as two.
fn ranges(text: &str) -> Vec<PortRange> {
    assert!(text.split([',', ':']).count() <= 15, "{text}");
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        PortRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
    };
    text.split(',').map(range).collect()
}

fn verdict(target: &str) -> Verdict {
    match target.split(' ').collect::<Vec<_>>()[..] {
        ["RETURN"] => Verdict::Return,
        ["REDIRECT", "--to-ports", port] => Verdict::Redirect(port.parse().unwrap()),
        [name] => Verdict::Jump(chain(name)),
        _ => panic!("unknown target: {target}"),
    }
}
