//! Renders the config that a container runtime would send to the plugin's stdin. Pure.
//!
//! A runtime derives this config from the plugin entry as the CNI spec 1.1 says in section 3,
//! "Deriving execution configuration from plugin configuration".

use serde_json::{Map, Value, json};

use crate::cni::{Command, version};
use crate::config::ignored_ports::INNER_KEY;
use crate::conflist::plugin_entry;

/// CNI version of a network config that names no version.
const FIRST_VERSION: &str = "0.1.0";

pub struct PluginConfig {
    fields: Map<String, Value>,
    /// The `prevResult` for ADD, which the plugin only passes through. Null if no plugin runs
    /// before linkerd-cni, as in a standalone config that Multus calls.
    pub previous_result: Value,
    /// Whether the CNI version of the config has the command CHECK.
    pub has_check: bool,
}

impl PluginConfig {
    /// Reads the plugin entry of the network config `text`, and adds the network's name and CNI
    /// version. Removes the kubeconfig, because the plugin needs no request in a self-test, and
    /// would send its records to the agent's socket beside the kubeconfig. Returns `None` if there
    /// is no plugin entry.
    pub fn from_network_config(text: &str) -> Option<PluginConfig> {
        let entry = plugin_entry(text)?;
        let version = entry.version.unwrap_or_else(|| FIRST_VERSION.to_owned());
        let mut fields: Map<String, Value> = serde_json::from_str(entry.text).ok()?;
        fields.remove("kubernetes");
        fields.insert("name".into(), json!(entry.name));
        fields.insert("cniVersion".into(), json!(version));
        let previous_result =
            if entry.has_previous { json!({"cniVersion": version}) } else { Value::Null };
        let has_check = version::check(Command::Check, &version).is_ok();
        Some(PluginConfig { fields, previous_result, has_check })
    }

    /// Renders the config as JSON.
    pub fn text(&self) -> String {
        Value::Object(self.fields.clone()).to_string()
    }

    /// Renders the JSON for the plugin's stdin, with this `prevResult` unless it is null. Omits the
    /// interfaces inside pods: for these, the plugin sets a sysctl, which is read-only in the
    /// agent's container.
    pub fn stdin(&self, previous_result: &Value) -> String {
        let mut fields = self.fields.clone();
        if let Some(Value::Object(linkerd)) = fields.get_mut("linkerd") {
            linkerd.remove(INNER_KEY);
        }
        if !previous_result.is_null() {
            fields.insert("prevResult".into(), previous_result.clone());
        }
        Value::Object(fields).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"},
        {"type": "linkerd-cni", "name": "linkerd-cni", "kubernetes": {"kubeconfig": "/kc"},
         "linkerd": {"iptables-mode": "nft", "inner-interfaces": ["docker0"]},
         "capabilities": {"io.kubernetes.cri.pod-annotations": true}}]}"#;

    #[test]
    fn stdin_is_the_plugin_entry_with_the_fields_that_a_runtime_adds() {
        let config = PluginConfig::from_network_config(LIST).unwrap();
        let stdin = config.stdin(&config.previous_result);
        let stdin: Value = serde_json::from_str(&stdin).unwrap();
        let expected = json!({
            "name": "net",
            "cniVersion": "1.0.0",
            "type": "linkerd-cni",
            "linkerd": {"iptables-mode": "nft"},
            "capabilities": {"io.kubernetes.cri.pod-annotations": true},
            "prevResult": {"cniVersion": "1.0.0"},
        });
        assert_eq!(stdin, expected);
        assert!(config.text().contains(r#""inner-interfaces":["docker0"]"#));
        assert!(config.has_check);
    }

    #[test]
    fn check_is_called_from_cni_version_0_4_0_on() {
        for (version, has_check) in [("0.2.0", false), ("0.3.1", false), ("0.4.0", true)] {
            let config =
                PluginConfig::from_network_config(&LIST.replace("1.0.0", version)).unwrap();
            assert_eq!(config.previous_result["cniVersion"], version);
            assert_eq!(config.has_check, has_check, "{version}");
        }
        // No plugin runs before linkerd-cni in a standalone config, so there is no `prevResult`.
        let conf = r#"{"type": "linkerd-cni", "name": "linkerd-cni", "cniVersion": "0.3.1"}"#;
        let config = PluginConfig::from_network_config(conf).unwrap();
        let stdin: Value = serde_json::from_str(&config.stdin(&config.previous_result)).unwrap();
        assert_eq!(stdin, serde_json::from_str::<Value>(conf).unwrap());
    }
}
