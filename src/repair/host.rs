//! The host's directories as mounted into this container: plugin configuration, cached CNI
//! results, and the pods' netns.

use std::path::{Path, PathBuf};

use crate::cni;
use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::{net_dir, plan};
use crate::{conflist, files};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error("the runtime loads no network configuration from {}", dir.display())]
    NoConflist { dir: PathBuf },
    #[error("{} does not carry {}", path.display(), conflist::PLUGIN)]
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
pub struct Host {
    /// The CNI net dir, with the network configs.
    pub net_dir: PathBuf,
    /// File name of the plugin's kubeconfig in the net dir.
    pub kubeconfig: String,
    /// Results that libcni caches at each ADD.
    pub results_dir: PathBuf,
    /// The netns of the pods, as files.
    pub netns_dir: PathBuf,
}

impl Host {
    /// Finds the host's directories below `prefix`, where parts of the host's root are
    /// mounted. `net_dir` is the path on the host.
    pub fn below(prefix: &Path, net_dir: &str, kubeconfig: &str) -> Self {
        Host {
            net_dir: prefix.join(net_dir.trim_start_matches('/')),
            kubeconfig: kubeconfig.to_owned(),
            results_dir: prefix.join("var/lib/cni/results"),
            netns_dir: prefix.join("var/run/netns"),
        }
    }

    /// Reads the plugin configuration for the next pod: the plugin entry of the active
    /// conflist.
    pub fn config(&self) -> Result<Config, Error> {
        let scanned = net_dir::scan(&self.net_dir, &self.kubeconfig)?;
        let active = plan::active(&scanned)
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

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::conflist::chain_mode;

    const BRIDGE: &str = r#"{"name":"a","plugins":[{"type":"bridge"}]}"#;

    fn host(files: &[(&str, &str)]) -> (TempDir, Host) {
        let dir = TempDir::new().unwrap();
        let host = Host::below(dir.path(), "/etc/cni/net.d", "ZZZ-kubeconfig");
        fs::create_dir_all(&host.net_dir).unwrap();
        for (name, text) in files {
            fs::write(host.net_dir.join(name), text).unwrap();
        }
        (dir, host)
    }

    #[test]
    fn the_configuration_is_the_plugin_entry_of_the_active_conflist() {
        let list = |ipv6: bool| {
            json!({"name": "a", "plugins": [
                {"type": "bridge"},
                {"type": "linkerd-cni", "linkerd": {"ipv6": ipv6}},
            ]})
            .to_string()
        };
        let (_dir, host) = host(&[
            ("05-broken.conflist", "{"),
            ("10-a.conflist", &list(true)),
            ("20-b.conflist", &list(false)),
        ]);
        assert_eq!(host.config().unwrap().ipv6, crate::config::Ipv6::Yes);
    }

    #[test]
    fn the_entry_of_a_copy_that_the_runtime_loads_is_used() {
        let copy = r#"{"name":"a","plugins":[{"type":"bridge"},{"type":"linkerd-cni","linkerd":{"ipv6":true}}]}"#;
        let (_dir, host) = host(&[(chain_mode::COPY, copy), ("10-a.conflist", BRIDGE)]);
        assert_eq!(host.config().unwrap().ipv6, crate::config::Ipv6::Yes);
    }

    #[test]
    fn a_standalone_network_config_is_the_plugin_entry() {
        let alone = r#"{"type":"linkerd-cni","name":"linkerd-cni","linkerd":{"ipv6":true}}"#;
        let (_dir, host) = host(&[(chain_mode::STANDALONE, alone)]);
        assert_eq!(host.config().unwrap().ipv6, crate::config::Ipv6::Yes);
    }

    #[test]
    fn a_node_without_a_plugin_entry_is_an_error() {
        for (files, says) in [
            (&[][..], "loads no network configuration"),
            (&[("10-a.conflist", BRIDGE)], "does not carry linkerd-cni"),
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
            assert!(error.contains(says), "{error}");
        }
        let nowhere = Host::below(Path::new("/no/such"), "/etc", "k");
        assert!(nowhere.config().is_err());
    }
}
