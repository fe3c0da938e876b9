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

use super::error::Error;
use crate::netlink::attribute::Attributes;
use crate::netlink::socket::{self, APPEND, CREATE, EXCLUSIVE, Message};
use crate::redirect::rules::{self, Chain, nft};
use crate::redirect::{Family, Redirect};
use expressions::SetName;
pub use message::PLUGIN_TABLE;

/// Oldest supported kernel, as major and minor version. Before Linux 4.18, a hook can have only one
/// `nat` chain, and the kernel restores the addresses of replies only in hooks that have one.
const OLDEST_KERNEL: (u32, u32) = (4, 18);

/// Installs the rules of `redirect` in the plugin's table of each family.
///
/// The first transaction creates the tables. If a table exists already, a second transaction
/// replaces them all. A transaction is atomic: until the new rules take effect, the old rules do.
/// After a timeout, the rules may have changed. After any other error, they have not.
pub fn apply(redirect: &Redirect, families: &[Family]) -> Result<(), Error> {
    reject_old_kernel(&uname().map(|name| name.release().to_owned()).unwrap_or_default())?;
    let create = transaction(redirect, families, true);
    match socket::transact(&create) {
        Ok(()) => Ok(()),
        Err(rejection) if rejection.errno == Errno::EEXIST => {
            let replace = transaction(redirect, families, false);
            socket::transact(&replace).map_err(|rejection| rejection::error(&replace, rejection))
        }
        Err(rejection) => Err(rejection::error(&create, rejection)),
    }
}

/// Fails if the kernel's `release`, such as `5.14.0-427.el9.x86_64`, is older than
/// [`OLDEST_KERNEL`]. Accepts a release that it cannot parse.
fn reject_old_kernel(release: &OsStr) -> Result<(), Error> {
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

/// Builds the messages that create the tables. If `fresh` is false, the messages first delete
/// tables that exist.
///
/// Public for tests that evaluate the messages without a kernel.
pub fn transaction(redirect: &Redirect, families: &[Family], fresh: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    // ID of the last set, counted from 1.
    let mut set_id = 0;
    for &family in families {
        messages.extend(table_messages(family, fresh));
        for chain in Chain::ALL {
            let chain = message::chain(chain);
            messages.push(message::message(libc::NFT_MSG_NEWCHAIN, family, CREATE, chain));
        }
        for run in nft::runs(&rules::marked_rules(redirect, family, families)) {
            if let Some(set) = nft::set(run) {
                set_id += 1;
                messages.extend(set::messages(&set, family, set_id));
            }
            let rule = message::rule(run, &SetName::New(set_id));
            messages.push(message::message(libc::NFT_MSG_NEWRULE, family, CREATE | APPEND, rule));
        }
    }
    messages
}

/// Builds the messages that create the plugin's table. If `fresh` is true, the kernel rejects them
/// with `EEXIST` if the table exists.
fn table_messages(family: Family, fresh: bool) -> Vec<Message> {
    if fresh {
        let flags = CREATE | EXCLUSIVE;
        return vec![message::message(libc::NFT_MSG_NEWTABLE, family, flags, message::table())];
    }
    let create = message::message(libc::NFT_MSG_NEWTABLE, family, CREATE, message::table());
    let delete = message::message(libc::NFT_MSG_DELTABLE, family, 0, message::table());
    // Deleting a missing table fails, so create the table first.
    vec![create.clone(), delete, create]
}

/// Deletes the rules of each family that is not in `families`, from the plugin's own tables and
/// from those of `iptables-nft`. The chains `PROXY_INIT_*` remain, but are empty.
pub fn flush_other_families(families: &[Family]) -> Result<(), Error> {
    for &family in Family::ALL {
        if !families.contains(&family) {
            flush(PLUGIN_TABLE, family)?;
            flush(rules::NAT_TABLE, family)?;
        }
    }
    Ok(())
}

/// Deletes the rules of these families from the tables of `iptables-nft`. The chains `PROXY_INIT_*`
/// remain, but are empty.
pub fn flush_iptables(families: &[Family]) -> Result<(), Error> {
    for &family in families {
        flush(rules::NAT_TABLE, family)?;
    }
    Ok(())
}

/// Deletes the rules of the chains `PROXY_INIT_*` in `table`. Succeeds if the table or the chains
/// are missing.
fn flush(table: &str, family: Family) -> Result<(), Error> {
    for chain in Chain::LINKERD {
        let rules = Attributes::default()
            .text(nfta::RULE_TABLE, table)
            .text(nfta::RULE_CHAIN, chain.name());
        let messages = [message::message(libc::NFT_MSG_DELRULE, family, 0, rules)];
        match socket::transact(&messages) {
            Err(rejection) if !rejection::means_missing(rejection.errno) => {
                return Err(rejection::error(&messages, rejection));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
