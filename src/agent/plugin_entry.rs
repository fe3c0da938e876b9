//! Renders the plugin entry that the agent chains, from the chart's template.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::settings::{EntryTemplate, Settings};
use crate::conflist;
use crate::conflist::Entry;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no plugin entry template: set CNI_NETWORK_CONFIG or CNI_NETWORK_CONFIG_FILE")]
    Missing,
    #[error("cannot read the plugin entry template {}: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the plugin entry template in {origin} {source}")]
    Invalid {
        origin: String,
        #[source]
        source: conflist::Error,
    },
}

/// Renders the plugin entry from the template in the settings or in the file that they name.
pub fn render(settings: &Settings) -> Result<Entry, Error> {
    let (text, origin) = match &settings.entry_template {
        EntryTemplate::Text(text) => (text.clone(), "CNI_NETWORK_CONFIG".to_owned()),
        EntryTemplate::File(path) => match fs::read_to_string(path) {
            Ok(text) => (text, path.display().to_string()),
            Err(source) => {
                let path = path.clone();
                return Err(Error::Read { path, source });
            }
        },
        EntryTemplate::None => return Err(Error::Missing),
    };
    Entry::new(&text, &settings.node.kubeconfig_on_host)
        .map_err(|source| Error::Invalid { origin, source })
}
