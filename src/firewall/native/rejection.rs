//! Turns the kernel's errors into [`Error`]s that name the rejected object and a remedy. Pure.

use std::borrow::Cow;

use nix::errno::Errno;
use nix::libc;

use super::message::{self, protocol_family};
use super::nfta;
use crate::firewall::error::{Error, NO_IPV6};
use crate::netlink::attribute::find;
use crate::netlink::socket::{Message, Rejection};
use crate::redirect::Family;

/// Returns the error for a rejected transaction of `messages`.
pub fn error(messages: &[Message], Rejection { errno, sequence }: Rejection) -> Error {
    // Sequence numbers count from 1. The kernel reports 0 if the error is not about a message.
    let Some(rejected) = messages.get((sequence as usize).wrapping_sub(1)) else {
        let remedy = remedy(errno, None).unwrap_or_default().to_owned();
        return Error::Native { subject: "the transaction".to_owned(), remedy, source: errno };
    };
    let mut remedies = Vec::from_iter(remedy(errno, Some(rejected.kind)));
    if rejected.family == protocol_family(Family::Ipv6) {
        remedies.push(NO_IPV6);
    }
    Error::Native { subject: subject(rejected), remedy: remedies.join("; "), source: errno }
}

/// Returns the error for a listing that the kernel rejected or did not complete.
pub fn list_error(errno: Errno) -> Error {
    let subject = "the list of tables, chains, rules and sets".to_owned();
    if errno == Errno::EFBIG {
        return Error::TooLong { subject };
    }
    let remedy = remedy(errno, None).unwrap_or_default().to_owned();
    Error::Native { subject, remedy, source: errno }
}

/// Returns whether `errno` means that the object does not exist, or that the kernel lacks nf_tables
/// or the address family.
pub fn means_missing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::ENOENT
    )
}

/// Names the object that `message` creates or deletes.
fn subject(message: &Message) -> String {
    let family = if message.family == protocol_family(Family::Ipv4) { "ip" } else { "ip6" };
    // The table is attribute 1 in messages of all types, not only as `NFTA_TABLE_NAME`.
    let table = format!("table {family} {}", text_of(message, nfta::TABLE_NAME));
    match message.kind {
        libc::NFT_MSG_NEWCHAIN => {
            format!("chain {} of {table}", text_of(message, nfta::CHAIN_NAME))
        }
        libc::NFT_MSG_NEWRULE | libc::NFT_MSG_DELRULE => {
            let userdata = find(&message.attributes.0, nfta::RULE_USERDATA);
            let rule = match userdata.and_then(message::comment) {
                Some(comment) => format!("rule {}", message::text(comment)),
                None => "the rules".to_owned(),
            };
            format!("{rule} in chain {} of {table}", text_of(message, nfta::RULE_CHAIN))
        }
        libc::NFT_MSG_NEWSET | libc::NFT_MSG_NEWSETELEM => format!("a set of {table}"),
        _ => table,
    }
}

fn text_of(message: &Message, kind: u16) -> Cow<'_, str> {
    message::text(find(&message.attributes.0, kind).unwrap_or_default())
}

/// Returns the remedy if the kernel rejects a message of the type `kind` with `errno`. `None` as
/// the type means that the kernel rejected the whole transaction or a listing.
fn remedy(errno: Errno, kind: Option<i32>) -> Option<&'static str> {
    Some(match (errno, kind) {
        (Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT, None) => {
            "load the kernel module nf_tables (CONFIG_NF_TABLES)"
        }
        (Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT, Some(libc::NFT_MSG_NEWTABLE)) => {
            "use a kernel with nf_tables of this address family (CONFIG_NF_TABLES_IPV4 or _IPV6)"
        }
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(libc::NFT_MSG_NEWCHAIN)) => {
            "load the kernel module nft_chain_nat (before Linux 5.2 nft_chain_nat_ipv4 and _ipv6)"
        }
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(libc::NFT_MSG_NEWSET)) => {
            "load the kernel module nf_tables_set (in older kernels a module of its own)"
        }
        // Of the expressions in our rules, only `redir` and `nat` need a module in every kernel.
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(libc::NFT_MSG_NEWRULE)) => {
            "load the kernel module nft_redir, or that of another expression of the rule, such as \
             nft_nat"
        }
        (Errno::EPERM, None) => {
            "the plugin needs CAP_NET_ADMIN in the user namespace of the pod's network namespace"
        }
        // Only a Linux security module rejects a message with EACCES.
        (Errno::EACCES, None) => {
            "check the node's audit log for SELinux denials of netlink_netfilter_socket, and \
             allow it for the domain of the container runtime"
        }
        (Errno::EPERM, Some(libc::NFT_MSG_NEWTABLE)) => {
            "another process owns this table (nft list tables shows the flag owner): end it"
        }
        (Errno::EMSGSIZE, None) => {
            "the rules exceed the send buffer: shorten the pod's lists of skipped ports and \
             subnets, or raise net.core.wmem_max"
        }
        _ => return None,
    })
}
