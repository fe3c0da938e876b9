//! The plugin's configuration for one call, as a runtime makes it of a network config. Pure.

use serde_json::{Map, Value, json};

use crate::cni::version;
use crate::conflist::plugin_entry;

/// The capability by which a plugin is handed the pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// What a list without a version is taken for.
const FIRST_VERSION: &str = "0.1.0";

/// Our entry as a runtime would send it.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    members: Map<String, Value>,
    pub version: String,
    /// Whether the runtime passes the result of a plugin before.
    has_previous: bool,
}

impl Network {
    /// Takes the plugin entry out of the network config `text`, with what that gives to
    /// each of its plugins; `None` if there is no plugin entry.
    pub fn of(text: &str) -> Option<Network> {
        let entry = plugin_entry(text)?;
        let version = entry.version.unwrap_or_else(|| FIRST_VERSION.to_owned());
        let mut members: Map<String, Value> = serde_json::from_str(entry.text).ok()?;
        members.insert("name".into(), json!(entry.name));
        members.insert("cniVersion".into(), json!(version));
        Some(Network {
            members,
            version,
            has_previous: entry.has_previous,
        })
    }

    /// The plugin's settings with `kubeconfig` in place of the node's, and for a pod
    /// that has Linkerd's annotations, if the entry asks for them.
    pub fn for_pod(mut self, kubeconfig: &str) -> Network {
        self.members
            .insert("kubernetes".into(), json!({"kubeconfig": kubeconfig}));
        let asks = &self.members.get("capabilities").unwrap_or(&Value::Null)[ANNOTATIONS];
        if *asks == true {
            let annotations = json!({"linkerd.io/proxy-version": "self-test"});
            let runtime = json!({ANNOTATIONS: annotations});
            self.members.insert("runtimeConfig".into(), runtime);
        }
        self
    }

    /// With the programs of the host out of reach, the kernel is asked to do what they
    /// would. Whether that had to be.
    pub fn without_host_programs(&mut self) -> bool {
        let Some(Value::Object(linkerd)) = self.members.get_mut("linkerd") else {
            return false;
        };
        let mode = linkerd.get("iptables-mode").and_then(Value::as_str);
        let needs = matches!(mode, Some("nft" | "legacy" | "plain"));
        if needs {
            linkerd.insert("iptables-mode".into(), json!("auto"));
        }
        needs
    }

    /// What goes to the plugin's stdin after plugins with the result `previous`, null for
    /// none.
    pub fn stdin(&self, previous: &Value) -> String {
        let mut members = self.members.clone();
        if !previous.is_null() {
            members.insert("prevResult".into(), previous.clone());
        }
        Value::Object(members).to_string()
    }

    /// A result that a plugin before ours could have given, with these addresses; null
    /// where none runs before, as when Multus calls a standalone config.
    pub fn result(&self, sandbox: &str, addresses: &[String]) -> Value {
        if !self.has_previous {
            return Value::Null;
        }
        let shape = version::shape(&self.version);
        if shape == version::shape(FIRST_VERSION) {
            return json!({"cniVersion": self.version, "ip4": {"ip": addresses.first()}});
        }
        let ips: Vec<Value> = addresses
            .iter()
            .map(|address| {
                let mut ip = json!({"address": address, "interface": 0});
                // Wanted up to 0.4.0, gone since.
                if shape != version::shape(version::CURRENT) {
                    ip["version"] = json!(if address.contains(':') { "6" } else { "4" });
                }
                ip
            })
            .collect();
        json!({
            "cniVersion": self.version,
            "interfaces": [{"name": super::INTERFACE, "sandbox": sandbox}],
            "ips": ips,
            "dns": {},
        })
    }

    /// Whether the runtime could call CHECK.
    pub fn has_check(&self) -> bool {
        version::allows(&self.version, "0.4.0", "CHECK").is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"},
        {"type": "linkerd-cni", "name": "linkerd-cni", "kubernetes": {"kubeconfig": "/kc"},
         "linkerd": {"iptables-mode": "nft"},
         "capabilities": {"io.kubernetes.cri.pod-annotations": true}}]}"#;

    #[test]
    fn the_entry_gets_what_a_runtime_adds_to_it() {
        let mut network = Network::of(LIST).unwrap().for_pod("/proc/1/fd/3");
        assert!(network.without_host_programs() && !network.without_host_programs());
        let previous = network.result("/ns", &["192.0.2.1/24".into(), "2001:db8::1/64".into()]);
        let stdin: Value = serde_json::from_str(&network.stdin(&previous)).unwrap();
        let wanted = json!({
            "name": "net",
            "cniVersion": "1.0.0",
            "type": "linkerd-cni",
            "kubernetes": {"kubeconfig": "/proc/1/fd/3"},
            "linkerd": {"iptables-mode": "auto"},
            "capabilities": {"io.kubernetes.cri.pod-annotations": true},
            "runtimeConfig": {"io.kubernetes.cri.pod-annotations":
                {"linkerd.io/proxy-version": "self-test"}},
            "prevResult": {
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "eth0", "sandbox": "/ns"}],
                "ips": [{"address": "192.0.2.1/24", "interface": 0},
                        {"address": "2001:db8::1/64", "interface": 0}],
                "dns": {},
            },
        });
        assert_eq!(stdin, wanted);
        assert!(network.has_check());
    }

    #[test]
    fn old_versions_get_old_results_and_no_check() {
        for (version, key, check) in [
            ("0.2.0", "/ip4/ip", false),
            ("0.3.1", "/ips/0/version", false),
            ("0.4.0", "/ips/0/version", true),
        ] {
            let network = Network::of(&LIST.replace("1.0.0", version)).unwrap();
            let result = network.result("/ns", &["192.0.2.1/24".into()]);
            assert!(result.pointer(key).is_some(), "{version}: {result}");
            assert_eq!(network.has_check(), check, "{version}");
        }
    }

    #[test]
    fn a_standalone_config_is_called_as_multus_does_without_a_previous_result() {
        let conf = r#"{"type": "linkerd-cni", "name": "linkerd-cni", "cniVersion": "0.3.1"}"#;
        let network = Network::of(conf).unwrap();
        let previous = network.result("/ns", &["192.0.2.1/24".into()]);
        let stdin: Value = serde_json::from_str(&network.stdin(&previous)).unwrap();
        assert_eq!(stdin, serde_json::from_str::<Value>(conf).unwrap());
        assert!(!network.has_check());
    }

    #[test]
    fn a_network_config_without_us_has_nothing_to_call() {
        for text in ["", "{}", r#"{"plugins": [{"type": "bridge"}]}"#] {
            assert_eq!(Network::of(text), None);
        }
    }
}
