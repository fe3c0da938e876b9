//! The host's directories as mounted into this container: the CNI net dir with the plugin
//! entry, cached CNI results, and the pods' netns.

use std::path::PathBuf;

use super::settings::Settings;
use crate::cni;
use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::{net_dir, plan};
use crate::{conflist, files};

/// File name of the plugin's kubeconfig, which is no network config.
const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";

/// Why the plugin's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error("no active network config in {}", dir.display())]
    NoConflist { dir: PathBuf },
    #[error("{} has no plugin entry", path.display())]
    NoPluginEntry { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Config {
        path: PathBuf,
        #[source]
        source: cni::Error,
    },
}

/// Paths of the host's directories in this container.
#[derive(Clone, Debug)]
pub struct HostDirs {
    /// The CNI net dir, with the network configs.
    pub net_dir: PathBuf,
    /// Results that the runtime's libcni caches at each ADD.
    pub results_dir: PathBuf,
    /// Directory with a file for the netns of each pod.
    pub netns_dir: PathBuf,
}

impl HostDirs {
    /// Returns the paths at which the host's directories are mounted.
    pub fn of(settings: &Settings) -> Self {
        HostDirs {
            net_dir: settings.net_dir(),
            results_dir: settings.results_dir(),
            netns_dir: settings.netns_dir(),
        }
    }

    /// Reads the plugin's configuration from the plugin entry of the active conflist, which
    /// is the configuration for the next pod.
    pub fn config(&self) -> Result<Config, Error> {
        let scanned = net_dir::scan(&self.net_dir, KUBECONFIG)?;
        let active = plan::called(&scanned)
            .ok_or_else(|| Error::NoConflist { dir: self.net_dir.clone() })?;
        let path = self.net_dir.join(&active.name);
        let text = active.content.as_ref().map(|content| &*content.text);
        let entry = conflist::plugin_entry(text.unwrap_or_default());
        let entry = entry.and_then(|entry| serde_json::from_str::<Object>(entry.text).ok());
        let entry = entry.ok_or_else(|| Error::NoPluginEntry { path: path.clone() })?;
        Config::read(&entry).map_err(|source| Error::Config { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::conflist::chain_mode;

    const BRIDGE: &str = r#"{"name":"a","plugins":[{"type":"bridge"}]}"#;

    fn host_in(dir: &Path) -> HostDirs {
        HostDirs {
            net_dir: dir.join("etc/cni/net.d"),
            results_dir: PathBuf::new(),
            netns_dir: PathBuf::new(),
        }
    }

    fn host(files: &[(&str, &str)]) -> (TempDir, HostDirs) {
        let dir = TempDir::new().unwrap();
        let host = host_in(dir.path());
        fs::create_dir_all(&host.net_dir).unwrap();
        for (name, text) in files {
            fs::write(host.net_dir.join(name), text).unwrap();
        }
        (dir, host)
    }

    #[test]
    fn the_configuration_is_the_plugin_entry_of_the_active_conflist() {
        let conflist = |ipv6: bool| {
            json!({"name": "a", "plugins": [
                {"type": "bridge"},
                {"type": "linkerd-cni", "linkerd": {"ipv6": ipv6}},
            ]})
            .to_string()
        };
        let (_dir, host) = host(&[
            ("05-broken.conflist", "{"),
            ("10-a.conflist", &conflist(true)),
            ("20-b.conflist", &conflist(false)),
        ]);
        assert_eq!(host.config().unwrap().ipv6, crate::redirect::Ipv6::Yes);
    }

    #[test]
    fn the_configuration_is_the_plugin_entry_of_an_active_copy() {
        let copy = r#"{"name":"a","plugins":[{"type":"bridge"},{"type":"linkerd-cni","linkerd":{"ipv6":true}}]}"#;
        let (_dir, host) = host(&[(chain_mode::COPY, copy), ("10-a.conflist", BRIDGE)]);
        assert_eq!(host.config().unwrap().ipv6, crate::redirect::Ipv6::Yes);
    }

    #[test]
    fn a_standalone_network_config_is_the_plugin_entry() {
        let alone = r#"{"type":"linkerd-cni","name":"linkerd-cni","linkerd":{"ipv6":true}}"#;
        let (_dir, host) = host(&[(chain_mode::STANDALONE, alone)]);
        assert_eq!(host.config().unwrap().ipv6, crate::redirect::Ipv6::Yes);
    }

    #[test]
    fn a_node_without_a_plugin_entry_is_an_error() {
        for (files, message) in [
            (&[][..], "no active network config in "),
            (&[("10-a.conflist", BRIDGE)], "10-a.conflist has no plugin entry"),
            (
                &[(
                    "10-a.conflist",
                    r#"{"name":"a","plugins":[{"type":"bridge"},{"type":"linkerd-cni","linkerd":[]}]}"#,
                )],
                "10-a.conflist: ",
            ),
        ] {
            let (_dir, host) = host(files);
            let error = host.config().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(host_in(Path::new("/no/such")).config().is_err());
    }
}
