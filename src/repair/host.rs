//! The node's files, as they are mounted into this container: what the plugin is told,
//! and where the pods' network namespaces are.

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
    Nothing { dir: PathBuf },
    #[error("{} does not carry {}", path.display(), conflist::PLUGIN)]
    NotOurs { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Config {
        path: PathBuf,
        #[source]
        source: cni::Error,
    },
}

/// Where the host's directories are for this process.
#[derive(Clone, Debug)]
pub struct Host {
    /// Network configurations.
    pub net_dir: PathBuf,
    /// File name of our kubeconfig among them.
    pub kubeconfig: String,
    /// What the runtime remembers of each ADD.
    pub results: PathBuf,
    /// Network namespaces by name.
    pub namespaces: PathBuf,
}

impl Host {
    /// The host's root is mounted at `prefix`, as far as it is mounted; `net_dir` is
    /// the host's path.
    pub fn below(prefix: &Path, net_dir: &str, kubeconfig: &str) -> Self {
        Host {
            net_dir: prefix.join(net_dir.trim_start_matches('/')),
            kubeconfig: kubeconfig.to_owned(),
            results: prefix.join("var/lib/cni/results"),
            namespaces: prefix.join("var/run/netns"),
        }
    }

    /// What the plugin is told for the next pod: our entry in the configuration that
    /// the runtime loads.
    pub fn config(&self) -> Result<Config, Error> {
        let found = net_dir::scan(&self.net_dir, &self.kubeconfig)?;
        let loaded = plan::loaded(&found).ok_or_else(|| Error::Nothing {
            dir: self.net_dir.clone(),
        })?;
        let path = self.net_dir.join(&loaded.name);
        let text = loaded.content.as_ref().map(|content| &*content.text);
        let entry = conflist::plugin_entry(text.unwrap_or_default());
        let entry = entry.and_then(|entry| serde_json::from_str::<Object>(entry.text).ok());
        let entry = entry.ok_or_else(|| Error::NotOurs { path: path.clone() })?;
        Config::read(&entry).map_err(|source| Error::Config { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::conflist::mode;

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
    fn the_entry_is_that_of_the_file_the_runtime_loads() {
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
    fn a_copy_that_the_runtime_loads_counts_and_the_network_behind_it_does_not() {
        let copy = r#"{"name":"a","plugins":[{"type":"bridge"},{"type":"linkerd-cni","linkerd":{"ipv6":true}}]}"#;
        let (_dir, host) = host(&[(mode::COPY, copy), ("10-a.conflist", BRIDGE)]);
        assert_eq!(host.config().unwrap().ipv6, crate::config::Ipv6::Yes);
    }

    #[test]
    fn a_standalone_configuration_is_the_entry() {
        let alone = r#"{"type":"linkerd-cni","name":"linkerd-cni","linkerd":{"ipv6":true}}"#;
        let (_dir, host) = host(&[(mode::STANDALONE, alone)]);
        assert_eq!(host.config().unwrap().ipv6, crate::config::Ipv6::Yes);
    }

    #[test]
    fn a_node_without_our_entry_is_no_node_to_act_on() {
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
