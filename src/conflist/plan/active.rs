//! Which network config is active: the first one in name order that a runtime can load.

use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::{self, Conflist};

/// Returns the active network config among `found`, which is in name order.
pub fn loaded(found: &[ConfigFile]) -> Option<&ConfigFile> {
    found.iter().find(|file| loadable(file))
}

/// Returns the network config that would be active if only `files` existed.
pub(super) fn first<'f>(files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    files.iter().copied().find(|file| loadable(file))
}

/// Returns whether a runtime would load the file.
pub(super) fn loadable(file: &ConfigFile) -> bool {
    let Ok(content) = &file.content else {
        return false;
    };
    match file.kind {
        ConfigKind::Conflist => Conflist::read(&content.text).and_then(|list| list.loadable()),
        ConfigKind::Conf | ConfigKind::Json => conflist::conf_loadable(&content.text),
    }
    .is_ok()
}

/// Says why no network config is active: none exists, or all are invalid.
pub(super) fn no_network(files: &[&ConfigFile]) -> String {
    match files.is_empty() {
        true => "there is no network configuration yet".into(),
        false => "there is no valid network configuration yet".into(),
    }
}
