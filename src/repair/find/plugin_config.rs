//! Reads the plugin entry with which the runtime will call the plugin for the next pod.

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::net_dir::{self, ConfigFile};
use crate::conflist::plan;

/// File name of the plugin's kubeconfig, which is no network config.
const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";

/// Reads the plugin entry of the active conflist in the mounted CNI net dir.
pub fn read(net_dir: &Path) -> Result<Config, Box<dyn Error>> {
    let scanned = match net_dir::scan(net_dir, KUBECONFIG) {
        Ok(scanned) => scanned,
        Err(error) => return Err(unreadable(error)),
    };
    let Some(active) = plan::called_config(&scanned) else {
        return Err(unreadable(format!("no active network config in {}", net_dir.display())));
    };
    let path = net_dir.join(&active.name);
    let Some(entry) = entry_object(active) else {
        return Err(unreadable(format!("{} has no plugin entry", path.display())));
    };
    match Config::read(&entry) {
        Ok(config) => Ok(config),
        Err(error) => Err(unreadable(format!("{}: {error}", path.display()))),
    }
}

/// Returns when the active conflist was written, if it has a plugin entry.
pub fn written_at(net_dir: &Path) -> Option<SystemTime> {
    let scanned = net_dir::scan(net_dir, KUBECONFIG).ok()?;
    let active = plan::called_config(&scanned)?;
    let has_entry = active.plugin_entry().is_some();
    if !has_entry {
        return None;
    }
    let metadata = fs::metadata(net_dir.join(&active.name)).ok()?;
    metadata.modified().ok()
}

fn entry_object(file: &ConfigFile) -> Option<Object> {
    let entry = file.plugin_entry()?;
    serde_json::from_str(entry.text).ok()
}

fn unreadable(why: impl Display) -> Box<dyn Error> {
    format!("cannot read the plugin's configuration: {why}").into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use testkit::table::rows_of;

    use super::*;
    use crate::redirect::Ipv6;

    #[derive(Deserialize)]
    struct Row {
        files: BTreeMap<String, String>,
        /// Part of the error.
        error: Option<String>,
    }

    #[test]
    fn the_configuration_is_the_plugin_entry_of_the_active_config() {
        for (name, row) in rows_of::<Row>(include_str!("tests.yaml"), "configs") {
            let dir = tempfile::tempdir().unwrap();
            for (file, text) in &row.files {
                fs::write(dir.path().join(file), text).unwrap();
            }
            match (read(dir.path()), &row.error) {
                (Ok(config), None) => {
                    assert_eq!(config.ipv6, Ipv6::Yes, "{name}");
                    assert!(written_at(dir.path()).is_some(), "{name}");
                }
                (Err(error), Some(part)) if error.to_string().contains(part) => {}
                (result, _) => panic!("{name}: {:?}", result.err()),
            }
        }
        assert!(read(Path::new("/no/such")).is_err());
    }
}
