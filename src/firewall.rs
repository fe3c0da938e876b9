//! Puts rules into the kernel, and looks whether they are there, in the network
//! namespace of the calling thread.
//!
//! Backends that mean the same: nf_tables of the kernel, or the iptables programs of
//! the host. Which one is the configuration's [`Mode`].

mod iptables;
mod native;
mod order;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::rules::{self, Family, Redirect, Verdict};
use iptables::Kind;

/// Missing rules that [`describe_missing`] names; a pod without port lists has eight at most.
const MISSING_NAMED: usize = 10;

/// The setting `iptables-mode`: which backends to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The first that works of native, nft and legacy. Also what an absent or empty
    /// `iptables-mode` means.
    #[default]
    Auto,
    /// nf_tables of the kernel, without any program of the host.
    Native,
    /// `iptables-nft-restore`.
    Nft,
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-restore`, whichever kind it is.
    Plain,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("nf_tables of the kernel: {}", source.desc())]
    Native {
        #[source]
        source: nix::Error,
    },
    #[error("none of {wanted} is in PATH, /usr/sbin or /sbin of the host")]
    NoPrograms { wanted: String },
    #[error("cannot start {}: {source}", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} failed: {stderr}", program.display())]
    Restore { program: PathBuf, stderr: String },
    #[error("{} took longer than {deadline:?} and was killed", program.display())]
    Deadline {
        program: PathBuf,
        deadline: Duration,
    },
    #[error("{} cannot list table nat: {message}", program.display())]
    List { program: PathBuf, message: String },
    #[error("no backend works: {}", errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; "))]
    NoBackend { errors: Vec<Error> },
}

/// One way to put rules in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Native,
    Iptables(Kind),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Native => "native",
            Backend::Iptables(Kind::Nft) => "nft",
            Backend::Iptables(Kind::Legacy) => "legacy",
            Backend::Iptables(Kind::Plain) => "plain",
        })
    }
}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Those to try for a mode, in this order.
fn backends(mode: Mode) -> &'static [Backend] {
    match mode {
        Mode::Auto => &[
            Backend::Native,
            Backend::Iptables(Kind::Nft),
            Backend::Iptables(Kind::Legacy),
        ],
        Mode::Native => &[Backend::Native],
        Mode::Nft => &[Backend::Iptables(Kind::Nft)],
        Mode::Legacy => &[Backend::Iptables(Kind::Legacy)],
        Mode::Plain => &[Backend::Iptables(Kind::Plain)],
    }
}

/// Redirects as `redirect` says, and returns by which backend. Repeating it gives the
/// same rules once; foreign rules stay. A backend that fails leaves nothing behind.
pub fn apply(redirect: &Redirect, families: &[Family], mode: Mode) -> Result<Backend, Error> {
    let mut errors = Vec::new();
    for &backend in backends(mode) {
        let applied = match backend {
            Backend::Native => native::apply(redirect, families),
            Backend::Iptables(kind) => iptables::apply(redirect, families, kind),
        };
        match applied {
            Ok(()) => return Ok(backend),
            Err(error) => errors.push(error),
        }
    }
    Err(all(errors))
}

/// The rules of `redirect` that the namespace does not have, as lines of
/// `iptables-save`. Empty: all are there, in order, by one of the mode's backends.
pub fn missing(redirect: &Redirect, families: &[Family], mode: Mode) -> Result<Vec<String>, Error> {
    let mut fewest: Option<Vec<String>> = None;
    let mut errors = Vec::new();
    for &backend in backends(mode) {
        let missing = match backend {
            Backend::Native => native::missing(redirect, families),
            Backend::Iptables(kind) => iptables::missing(redirect, families, kind),
        };
        match missing {
            Ok(missing) if missing.is_empty() => return Ok(missing),
            Ok(missing)
                if fewest
                    .as_ref()
                    .is_none_or(|fewest| missing.len() < fewest.len()) =>
            {
                fewest = Some(missing);
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    fewest.ok_or_else(|| all(errors))
}

/// What [`survey`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survey {
    /// All rules are there.
    Right,
    /// These are missing or changed, as lines of `iptables-save`.
    Wrong(Vec<String>),
    /// There is a table that only the host's iptables could read.
    Unreadable,
}

/// Looks for the rules of `redirect` without any program, whoever put them in place:
/// our own tables, and those of `iptables-nft`, which are nf_tables too. What
/// `iptables-legacy` made cannot be read, only that it made something.
pub fn survey(redirect: &Redirect, families: &[Family]) -> Result<Survey, Error> {
    let ours = native::missing(redirect, families)?;
    Ok(match native::missing_from_iptables(redirect, families)? {
        // They come first, so that ours, right or not, cannot make up for them.
        Some(theirs) if !theirs.is_empty() => Survey::Wrong(theirs),
        Some(_) => Survey::Right,
        None if ours.is_empty() => Survey::Right,
        None if has_legacy_nat() => Survey::Unreadable,
        None => Survey::Wrong(ours),
    })
}

/// Puts the rules that a [`survey`] found wrong right, without any program: in tables
/// of our own, and without what is left of those that `iptables-nft` made.
pub fn restore(redirect: &Redirect, families: &[Family]) -> Result<(), Error> {
    native::apply(redirect, families)?;
    match native::missing_from_iptables(redirect, families)? {
        Some(theirs) if !theirs.is_empty() => native::empty_iptables(families),
        _ => Ok(()),
    }
}

/// Whether `iptables-legacy` has made its table `nat` in this thread's namespace.
fn has_legacy_nat() -> bool {
    ["ip_tables_names", "ip6_tables_names"].iter().any(|names| {
        // Absent where the kernel has no such iptables.
        std::fs::read_to_string(format!("/proc/thread-self/net/{names}"))
            .is_ok_and(|names| names.lines().any(|name| name == rules::TABLE))
    })
}

fn all(mut errors: Vec<Error>) -> Error {
    match errors.len() {
        1 => errors.remove(0),
        _ => Error::NoBackend { errors },
    }
}

/// Missing rules for an error or a log line: the first ones, and the number of the others.
/// A pod's annotations may need thousands of rules.
pub fn describe_missing(missing: &[String]) -> String {
    let (named, others) = missing.split_at(missing.len().min(MISSING_NAMED));
    match others.len() {
        0 => named.join("; "),
        count => format!("{}; and {count} more", named.join("; ")),
    }
}

/// Rules as they would be applied, for `simulate`.
pub fn simulate(redirect: &Redirect, families: &[Family]) -> String {
    let mut text = String::new();
    for &family in families {
        for rule in rules::rules(redirect, family) {
            let verb = match rule.verdict {
                Verdict::Jump(_) => "jump",
                _ => "rule",
            };
            text.push_str(&format!("{family:?} {verb} {}\n", rules::rule_line(&rule)));
        }
    }
    text
}
