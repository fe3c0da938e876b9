//! Reads the plugin's configuration for the next pod.

use std::path::Path;

use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::{net_dir, plan};

/// File name of the plugin's kubeconfig, which is no network config.
const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";

/// Why the plugin's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the plugin's configuration: {0}")]
pub struct Error(String);

/// Reads the plugin entry of the active conflist in the mounted CNI net dir.
pub fn read(net_dir: &Path) -> Result<Config, Error> {
    let scanned = net_dir::scan(net_dir, KUBECONFIG).map_err(|error| Error(error.to_string()))?;
    let active = plan::called(&scanned)
        .ok_or_else(|| Error(format!("no active network config in {}", net_dir.display())))?;
    let (path, entry) = (net_dir.join(&active.name), active.plugin_entry());
    let entry = entry
        .and_then(|entry| serde_json::from_str::<Object>(entry.text).ok())
        .ok_or_else(|| Error(format!("{} has no plugin entry", path.display())))?;
    Config::read(&entry).map_err(|error| Error(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::conflist::chain_mode;
    use crate::redirect::Ipv6;

    const BRIDGE: &str = r#"{"name":"a","plugins":[{"type":"bridge"}]}"#;
    /// With `ipv6`, which is not the default.
    const CHAINED: &str = r#"{"name":"a","plugins":[{"type":"bridge"},{"type":"linkerd-cni","linkerd":{"ipv6":true}}]}"#;
    const STANDALONE: &str =
        r#"{"type":"linkerd-cni","name":"linkerd-cni","linkerd":{"ipv6":true}}"#;

    fn read_files(files: &[(&str, &str)]) -> Result<Config, Error> {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        read(dir.path())
    }

    #[test]
    fn the_configuration_is_the_plugin_entry_of_the_active_network_config() {
        let ipv4_only = CHAINED.replace("true", "false");
        for files in [
            &[
                ("05-broken.conflist", "{"),
                ("10-a.conflist", CHAINED),
                ("20-b.conflist", &ipv4_only),
            ][..],
            &[(chain_mode::COPY, CHAINED), ("10-a.conflist", BRIDGE)],
            &[(chain_mode::STANDALONE, STANDALONE)],
        ] {
            assert_eq!(read_files(files).unwrap().ipv6, Ipv6::Yes, "{files:?}");
        }
    }

    #[test]
    fn a_node_without_a_plugin_entry_is_an_error() {
        let invalid = CHAINED.replace(r#"{"ipv6":true}"#, "[]");
        for (files, message) in [
            (&[][..], ": no active network config in "),
            (&[("10-a.conflist", BRIDGE)], "10-a.conflist has no plugin entry"),
            (&[("10-a.conflist", &invalid)], "10-a.conflist: "),
        ] {
            let error = read_files(files).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(read(Path::new("/no/such")).is_err());
    }
}
