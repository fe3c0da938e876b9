use super::*;
use crate::netlink::attribute::Attributes;
use crate::netlink::socket::Rejection;

/// Returns the error and its remedy if the kernel rejects the first message that `matches`.
fn rejected(errno: Errno, matches: impl Fn(&Message) -> bool) -> (String, String) {
    let redirect = Redirect { skip_outbound: vec![25.into(), 3306.into()], ..Redirect::example() };
    let messages = transaction(&redirect, &[Family::Ipv4, Family::Ipv6], true);
    let index = messages.iter().position(matches).unwrap();
    let rejection = Rejection { errno, sequence: index as u32 + 1 };
    let error = rejection::error(&messages, rejection);
    (error.to_string(), error.remedy().unwrap_or_default())
}

fn mentions(message: &Message, text: &str) -> bool {
    String::from_utf8_lossy(&message.attributes.0).contains(text)
}

#[test]
fn rejected_rule_error_names_the_comment_and_the_missing_module() {
    let rule = "the kernel rejected rule proxy-init/redirect-all-incoming-to-proxy-port \
                in chain PROXY_INIT_REDIRECT of table ip linkerd-cni";
    let is_redirect = |message: &Message| mentions(message, "redir\0");
    let (error, remedy) = rejected(Errno::ENOENT, is_redirect);
    assert_eq!(error, format!("{rule}: ENOENT: No such file or directory"));
    assert!(remedy.starts_with("load the kernel module nft_redir"), "{remedy}");
}

#[test]
fn rejection_error_names_the_chain_set_or_table_and_the_remedy() {
    let base =
        |message: &Message| message.kind == libc::NFT_MSG_NEWCHAIN && mentions(message, "nat\0");
    let (error, remedy) = rejected(Errno::ENOENT, base);
    assert_eq!(
        error,
        "the kernel rejected chain PREROUTING of table ip linkerd-cni: ENOENT: No such file or \
         directory"
    );
    assert!(remedy.starts_with("load the kernel module nft_chain_nat"), "{remedy}");
    let (error, remedy) =
        rejected(Errno::EOPNOTSUPP, |message| message.kind == libc::NFT_MSG_NEWSET);
    assert!(error.starts_with("the kernel rejected a set of table ip linkerd-cni: "), "{error}");
    assert!(remedy.starts_with("load the kernel module nf_tables_set"), "{remedy}");
    let is_ip6 = |message: &Message| message.family == message::protocol_family(Family::Ipv6);
    let (error, remedy) = rejected(Errno::EOPNOTSUPP, is_ip6);
    assert!(error.starts_with("the kernel rejected table ip6 linkerd-cni: EOPNOTSUPP"), "{error}");
    assert!(remedy.contains("CONFIG_NF_TABLES_IPV4"), "{remedy}");
    for kind in [libc::NFT_MSG_NEWTABLE, libc::NFT_MSG_NEWCHAIN, libc::NFT_MSG_NEWRULE] {
        let (_, remedy) =
            rejected(Errno::EINVAL, |message| is_ip6(message) && message.kind == kind);
        assert_eq!(remedy, crate::firewall::error::NO_IPV6);
    }
}

#[test]
fn rejection_of_no_particular_message_names_the_transaction() {
    for (errno, remedy) in [
        (Errno::EPROTONOSUPPORT, "load the kernel module nf_tables"),
        (Errno::EOPNOTSUPP, "load the kernel module nf_tables"),
        (Errno::EPERM, "the plugin needs CAP_NET_ADMIN"),
        (Errno::EACCES, "check the node's audit log for SELinux denials"),
        (Errno::EMSGSIZE, "the rules exceed the send buffer"),
    ] {
        let error = rejection::error(&[], errno.into());
        let text = error.to_string();
        let wanted = format!("the kernel rejected the transaction: {errno}");
        assert_eq!(text, wanted);
        let found = error.remedy().unwrap();
        assert!(found.starts_with(remedy), "{found}");
    }
}

#[test]
fn rules_in_other_tables_and_chains_are_ignored() {
    for (table, chain, wanted) in [
        (PLUGIN_TABLE, "OUTPUT", Some(Chain::Output)),
        (PLUGIN_TABLE, "INPUT", None),
        ("nat", "OUTPUT", None),
        ("linkerd-cni2", "OUTPUT", None),
        ("linkerd-cn", "OUTPUT", None),
    ] {
        let rule = Attributes::default()
            .text(nfta::RULE_TABLE, table)
            .text(nfta::RULE_CHAIN, chain)
            .bytes(nfta::RULE_USERDATA, &message::userdata("a"));
        let found = listing::chain_in(PLUGIN_TABLE, &rule.0);
        assert_eq!(found, wanted, "{table} {chain}");
    }
    assert_eq!(listing::chain_in(PLUGIN_TABLE, &[]), None);
}

#[test]
fn kernels_before_4_18_are_rejected() {
    let old = ["2.6.78", "3.10.0-1160.el7.x86_64", "4.14.355-196.amzn2.x86_64", "4.17"];
    for release in old {
        let error = reject_old_kernel(OsStr::new(release)).unwrap_err();
        let wanted = format!("the backend native needs Linux 4.18, and this kernel is {release}");
        assert_eq!(error.to_string(), wanted);
        assert!(error.remedy().is_some());
    }
    for release in ["4.18.0-553.el8_10.x86_64", "5.3", "6.18.44-fc", "10.0", "", "next"] {
        reject_old_kernel(OsStr::new(release)).unwrap();
    }
}
