//! Reads the plugin's configuration for the next pod.

use std::error::Error;
use std::path::Path;

use crate::cni::object::Object;
use crate::config::Config;
use crate::conflist::{net_dir, plan};

/// File name of the plugin's kubeconfig, which is no network config.
const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";

/// Reads the plugin entry of the active conflist in the mounted CNI net dir.
pub fn read(net_dir: &Path) -> Result<Config, Box<dyn Error>> {
    let unreadable = |why: String| format!("cannot read the plugin's configuration: {why}");
    let scanned = net_dir::scan(net_dir, KUBECONFIG).map_err(|err| unreadable(err.to_string()))?;
    let active = plan::called_config(&scanned)
        .ok_or_else(|| unreadable(format!("no active network config in {}", net_dir.display())))?;
    let path = net_dir.join(&active.name);
    let entry = active.plugin_entry();
    let entry = entry
        .and_then(|entry| serde_json::from_str::<Object>(entry.text).ok())
        .ok_or_else(|| unreadable(format!("{} has no plugin entry", path.display())))?;
    let config = Config::read(&entry);
    Ok(config.map_err(|error| unreadable(format!("{}: {error}", path.display())))?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;
    use crate::redirect::Ipv6;

    #[test]
    fn the_configuration_is_the_plugin_entry_of_the_active_network_config_or_an_error() {
        for case in testkit::chart::yaml(include_str!("tests.yaml"))["configs"].as_array().unwrap()
        {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in case[0].as_object().unwrap() {
                fs::write(dir.path().join(name), text.as_str().unwrap()).unwrap();
            }
            match read(dir.path()) {
                Ok(config) => assert_eq!((config.ipv6, &case[1]), (Ipv6::Yes, &Value::Null)),
                Err(error) => assert!(error.to_string().contains(case[1].as_str().unwrap())),
            }
        }
        assert!(read(Path::new("/no/such")).is_err());
    }
}
