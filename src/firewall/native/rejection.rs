//! Describes which message of a transaction the kernel rejected, and what to do. Pure.

use nix::errno::Errno;

use super::message::kind;
use super::nfta;
use crate::firewall::Error;
use crate::netlink::attribute::find;
use crate::netlink::socket::{Message, Rejection};

const NO_NF_TABLES: &str = "load the kernel module nf_tables (CONFIG_NF_TABLES)";
const NO_NAT_CHAIN: &str =
    "load the kernel module nft_chain_nat (before Linux 5.2 nft_chain_nat_ipv4 and _ipv6)";
const NO_FAMILY: &str = "use a kernel with nf_tables of this address family (CONFIG_NF_TABLES_IPV4 or _IPV6), or for IPv6 set the chart's disableIPv6 to true";
/// Remedy if the kernel lacks an expression of a rule. The redirect is the only one that needs a module
/// in all kernels.
const NO_REDIRECT: &str =
    "load the kernel module nft_redir, or that of another expression of the rule";
const NO_SET: &str = "load the kernel module nf_tables_set (in older kernels a module of its own)";
const NO_PERMISSION: &str =
    "the plugin needs CAP_NET_ADMIN in the user namespace of the pod's network namespace";
/// Only a security module denies access.
const NO_ACCESS: &str = "check the node's audit log for SELinux denials of netlink_netfilter_socket, and allow it for the domain of the container runtime";
const FOREIGN_OWNER: &str =
    "another process owns this table (nft list tables shows the flag owner): end the process";
const TOO_LARGE: &str = "the rules exceed the send buffer: shorten the pod's lists of skipped ports and subnets, or raise net.core.wmem_max";

pub fn error(messages: &[Message], rejection: Rejection) -> Error {
    let at_fault =
        (rejection.sequence as usize).checked_sub(1).and_then(|index| messages.get(index));
    let subject = at_fault.map_or_else(|| "the transaction".to_owned(), subject);
    let remedy = remedy(rejection.errno, at_fault);
    Error::Native { subject, remedy, source: rejection.errno }
}

pub fn list_error(subject: &str, errno: Errno) -> Error {
    if errno == Errno::EFBIG {
        return Error::TooLong { subject: subject.to_owned() };
    }
    let remedy = remedy(errno, None);
    Error::Native { subject: subject.to_owned(), remedy, source: errno }
}

fn subject(message: &Message) -> String {
    let attributes = &message.attributes.0;
    let text = |kind| text(find(attributes, kind).unwrap_or_default());
    let family = if i32::from(message.family) == nix::libc::AF_INET { "ip" } else { "ip6" };
    match message.kind {
        kind::NEW_CHAIN => {
            let (table, chain) = (text(nfta::CHAIN_TABLE), text(nfta::CHAIN_NAME));
            format!("chain {chain} of table {family} {table}")
        }
        kind::NEW_RULE | kind::DELETE_RULE => {
            let (table, chain) = (text(nfta::RULE_TABLE), text(nfta::RULE_CHAIN));
            // Type and length precede the comment.
            let comment = find(attributes, nfta::RULE_USERDATA).and_then(|data| data.get(2..));
            let rule = match comment {
                Some(comment) => format!("rule {}", self::text(comment)),
                None => "the rules".to_owned(),
            };
            format!("{rule} in chain {chain} of table {family} {table}")
        }
        kind::NEW_SET | kind::NEW_ELEMENTS => {
            format!("a set of table {family} {}", text(nfta::SET_TABLE))
        }
        _ => format!("table {family} {}", text(nfta::TABLE_NAME)),
    }
}

fn remedy(errno: Errno, at_fault: Option<&Message>) -> Option<&'static str> {
    Some(match (errno, at_fault.map(|message| message.kind)) {
        (Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT, None) => NO_NF_TABLES,
        (Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT, Some(kind::NEW_TABLE)) => NO_FAMILY,
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(kind::NEW_CHAIN)) => NO_NAT_CHAIN,
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(kind::NEW_SET)) => NO_SET,
        (Errno::ENOENT | Errno::EOPNOTSUPP, Some(kind::NEW_RULE)) => NO_REDIRECT,
        (Errno::EPERM, None) => NO_PERMISSION,
        (Errno::EACCES, None) => NO_ACCESS,
        (Errno::EPERM, Some(kind::NEW_TABLE)) => FOREIGN_OWNER,
        (Errno::EMSGSIZE, None) => TOO_LARGE,
        _ => return None,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}
