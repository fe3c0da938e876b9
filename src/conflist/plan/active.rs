//! Finds the active network config, which is the first in name order that a runtime can load, and
//! checks whether the plugin is chained to it. No other module decides which file the runtime
//! loads.
//!
//! If the agent cannot read a file that the runtime may load, and that sorts before the first
//! loadable file, then there is no active network config: the agent does not know which plugins the
//! runtime calls.

use super::conf_conversion::is_named_or_converted;
use super::multus;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, RuntimeReaction};
use crate::conflist::{self, Conflist};

/// Returns the active network config among `files`, which are in name order.
pub(super) fn active_config<'f>(
    files: impl IntoIterator<Item = &'f ConfigFile>,
) -> Option<&'f ConfigFile> {
    let candidate = first_candidate(files)?;
    if is_loadable(candidate) { Some(candidate) } else { None }
}

/// Returns the first file that a runtime loads, or may load although the agent cannot read it.
fn first_candidate<'f>(files: impl IntoIterator<Item = &'f ConfigFile>) -> Option<&'f ConfigFile> {
    files.into_iter().find(|file| is_loadable(file) || unreadable_reason(file).is_some())
}

/// Returns why the agent cannot read `file`, if the runtime may load it.
fn unreadable_reason(file: &ConfigFile) -> Option<String> {
    let unreadable = file.content.as_ref().err()?;
    if unreadable.runtime != RuntimeReaction::MayLoad {
        return None;
    }
    Some(format!(
        "the container runtime may load {0}, which the agent cannot read, as it {1}; replace {0} \
         with a regular file of at most 5 MiB in UTF-8 that has all plugins in it, or remove it",
        file.name, unreadable.why
    ))
}

/// Returns the network config whose plugins the runtime calls if the net dir has only `files`,
/// which are in name order. That is the active network config. If this is the config of Multus'
/// daemon, it is the conflist that the daemon's config names.
pub fn called_config<'f>(
    files: impl IntoIterator<Item = &'f ConfigFile>,
) -> Option<&'f ConfigFile> {
    let files: Vec<&ConfigFile> = files.into_iter().collect();
    let active = active_config(files.iter().copied())?;
    Some(multus::find_delegate(active, &files).unwrap_or(active))
}

/// Returns whether a runtime loads `file`.
pub(super) fn is_loadable(file: &ConfigFile) -> bool {
    file.content.as_ref().is_ok_and(|content| check_loadable(file.kind, &content.text).is_ok())
}

/// Fails with the reason why no runtime loads a network config with this `text`.
fn check_loadable(kind: ConfigKind, text: &str) -> Result<(), conflist::Error> {
    match kind {
        ConfigKind::Conflist => Conflist::parse_any(text)?.check_loadable(),
        ConfigKind::Conf | ConfigKind::Json => conflist::check_conf_loadable(text),
    }
}

/// Returns the network config whose plugin entry is in use. That is the one through which the
/// runtime calls the plugin in this `mode`, or else the first one that has a plugin entry: a meta
/// plugin such as Multus may call it.
pub fn installed_config<'f>(mode: &ChainMode, files: &'f [ConfigFile]) -> Option<&'f ConfigFile> {
    if let Some(file) = chained_config(mode, files) {
        return Some(file);
    }
    if let Some(file) = called_config(files)
        && has_entry(file)
    {
        return Some(file);
    }
    files.iter().find(|file| has_entry(file))
}

/// Returns the network config through which the runtime calls the plugin: the active one, in mode
/// [`ChainMode::Only`] the file that `cniConfFileName` names, and in mode [`ChainMode::Standalone`]
/// the agent's own file, which another plugin calls.
pub fn chained_config<'f>(mode: &ChainMode, files: &'f [ConfigFile]) -> Option<&'f ConfigFile> {
    match mode {
        ChainMode::Only(_) | ChainMode::Standalone(_) => {
            selected_configs(mode, files).find(|file| has_entry(file))
        }
        ChainMode::Every => called_config(files).filter(|file| has_entry(file)),
    }
}

/// Returns the network configs to which the plugin is chained in this `mode`, and the conflists
/// that the agent makes from them.
pub fn selected_configs<'f>(
    mode: &ChainMode,
    files: &'f [ConfigFile],
) -> impl Iterator<Item = &'f ConfigFile> {
    let only = mode.only_config();
    files.iter().filter(move |file| only.is_none_or(|name| is_named_or_converted(file, name)))
}

fn has_entry(file: &ConfigFile) -> bool {
    file.plugin_entry().is_some()
}

/// Returns why containerd loads no network config although there is an active one: an invalid file
/// sorts before the active one. containerd reads the files in name order and gives up at the first
/// file that it cannot load (`loadFromConfDir` in go-cni). CRI-O skips such a file.
pub(super) fn containerd_failure(files: &[&ConfigFile]) -> Option<String> {
    for file in files {
        if is_loadable(file) {
            return None;
        }
        if let Some(reason) = invalid_reason(file) {
            return Some(format!(
                "{0} {reason}; containerd then loads no network config at all, and new pods do not \
                 start; correct or remove {0}",
                file.name
            ));
        }
    }
    None
}

/// Returns why a runtime that tries to load `file` fails. `None` if the runtime loads the file, or
/// does not try to load it, for example because it is a directory.
fn invalid_reason(file: &ConfigFile) -> Option<String> {
    match &file.content {
        Ok(content) => match check_loadable(file.kind, &content.text) {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        },
        Err(unreadable) if unreadable.runtime == RuntimeReaction::FailsToLoad => {
            Some(unreadable.why.clone())
        }
        Err(_) => None,
    }
}

/// Returns why there is no active network config among `files`.
pub(super) fn no_active_config_reason(files: &[&ConfigFile]) -> String {
    match first_candidate(files.iter().copied()).and_then(unreadable_reason) {
        Some(reason) => reason,
        None if files.is_empty() => "no network config exists yet".into(),
        None => "no valid network config exists yet".into(),
    }
}
