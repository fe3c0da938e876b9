//! The backend `native`: nf_tables over netlink, without programs of the host.
//!
//! One transaction writes the rules of all address families to the plugin's own tables.

mod expressions;
pub mod listing;
mod message;
mod nfta;
mod rejection;
mod set;

use std::ffi::OsStr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::utsname::uname;

use super::Error;
use crate::netlink::attribute::Attributes;
use crate::netlink::socket::{self, APPEND, CREATE, EXCLUSIVE, Message};
use crate::redirect::rules::{self, Chain, nft};
use crate::redirect::{Family, Redirect};
use expressions::SetName;
pub use message::PLUGIN_TABLE;

/// Oldest kernel, as major and minor version. Before Linux 4.18 the addresses of replies are restored
/// only in hooks that have a `nat` chain, and no second `nat` chain may have the same hook.
const OLDEST_KERNEL: (u32, u32) = (4, 18);

/// Errors of a kernel without nf_tables, without the address family, or without the object.
const MISSING: [Errno; 4] =
    [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::ENOENT];

/// Replaces the rules in the plugin's table of each family with those of `redirect`.
///
/// In a netns without the table, one transaction is enough. If the table exists, a second one
/// replaces it. The old rules apply until the new ones do.
/// After a timeout the rules may have changed, after any other error not.
pub fn apply(redirect: &Redirect, families: &[Family]) -> Result<(), Error> {
    refuse_old_kernel(&uname().map(|name| name.release().to_owned()).unwrap_or_default())?;
    let fresh = transaction(redirect, families, true);
    match socket::transact(&fresh) {
        Err(rejection) if rejection.errno == Errno::EEXIST => {
            let again = transaction(redirect, families, false);
            socket::transact(&again).map_err(|rejection| rejection::error(&again, rejection))
        }
        done => done.map_err(|rejection| rejection::error(&fresh, rejection)),
    }
}

/// Fails if the kernel's `release`, such as `5.14.0-427.el9.x86_64`, is older than
/// [`OLDEST_KERNEL`]. An unknown form of release passes.
fn refuse_old_kernel(release: &OsStr) -> Result<(), Error> {
    let release = release.to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_KERNEL => {
            let problem =
                format!("the backend native needs Linux 4.18, and this kernel is {release}");
            let remedy = Some("set the chart's iptablesMode to nft or legacy");
            Err(Error::Other { problem, remedy })
        }
        _ => Ok(()),
    }
}

/// Builds the messages that create the tables. Unless `fresh`, they first delete existing tables.
///
/// [`apply`] sends them. Tests evaluate them without a kernel.
pub fn transaction(redirect: &Redirect, families: &[Family], fresh: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    // Number of sets so far, which is also the ID of the last one.
    let mut sets = 0;
    for &family in families {
        let message = |kind, flags, rest| message::message(kind, family, flags, rest);
        if !fresh {
            // Deleting a missing table fails, so create it first.
            messages.push(message(libc::NFT_MSG_NEWTABLE, CREATE, message::table()));
            messages.push(message(libc::NFT_MSG_DELTABLE, 0, message::table()));
        }
        let exclusive = if fresh { EXCLUSIVE } else { 0 };
        messages.push(message(libc::NFT_MSG_NEWTABLE, CREATE | exclusive, message::table()));
        for chain in Chain::ALL {
            messages.push(message(libc::NFT_MSG_NEWCHAIN, CREATE, message::chain(chain)));
        }
        for run in nft::runs(&rules::marked_rules(redirect, family, families)) {
            if let Some(set) = nft::set(run) {
                sets += 1;
                messages.extend(set::messages(&set, family, sets));
            }
            let rule = message::rule(run, &SetName::New(sets));
            messages.push(message(libc::NFT_MSG_NEWRULE, CREATE | APPEND, rule));
        }
    }
    messages
}

/// Deletes all rules of the `PROXY_INIT_*` chains in the tables of `iptables-nft`, and in the plugin's
/// tables of other families than `families`. The empty chains and the jumps to them stay, without effect.
pub fn flush_others(families: &[Family]) -> Result<(), Error> {
    let of_iptables = Family::ALL.iter().map(|&family| (family, rules::NAT_TABLE));
    let others = Family::ALL.iter().filter(|family| !families.contains(family));
    let of_plugin = others.map(|&family| (family, PLUGIN_TABLE));
    for (family, table) in of_iptables.chain(of_plugin) {
        for chain in Chain::LINKERD {
            let rules = Attributes::default()
                .text(nfta::RULE_TABLE, table)
                .text(nfta::RULE_CHAIN, chain.name());
            let messages = [message::message(libc::NFT_MSG_DELRULE, family, 0, rules)];
            match socket::transact(&messages) {
                Err(rejection) if MISSING.contains(&rejection.errno) => {}
                done => done.map_err(|rejection| rejection::error(&messages, rejection))?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
