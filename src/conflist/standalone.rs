//! Our entry as a whole network configuration.

use super::{Entry, Object, PLUGIN};

/// Of the versions that both Multus and our plugin know, the oldest whose result may be
/// without an address: we have none to give.
const VERSION: &str = "0.3.1";

impl Entry {
    /// A `.conf`: the template with a version and, by which Multus finds it, a name,
    /// where it has none of its own.
    pub fn as_conf(&self) -> String {
        let own = Object::parse(&self.text).unwrap_or(Object(Vec::new()));
        let lacks = |key: &str| own.get(key).is_none();
        let mut added = String::new();
        for (key, value) in [("cniVersion", VERSION), ("name", PLUGIN)] {
            if lacks(key) {
                added.push_str(&format!("\n  \"{key}\": \"{value}\","));
            }
        }
        // The template has a member in any case: its type.
        let members = self.text.strip_prefix('{').unwrap_or_default();
        format!("{{{added}{members}\n")
    }

    /// A `.conflist` with our plugin alone.
    pub fn as_list(&self) -> String {
        let entry = self.text.replace('\n', "\n    ");
        format!(
            "{{\n  \"cniVersion\": \"{VERSION}\",\n  \"name\": \"{PLUGIN}\",\n  \"plugins\": [\n    \
             {entry}\n  ]\n}}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn conf(template: &str) -> Value {
        serde_json::from_str(&Entry::new(template, "").unwrap().as_conf()).unwrap()
    }

    #[test]
    fn a_standalone_configuration_has_name_version_and_all_of_the_template() {
        assert_eq!(
            conf(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#),
            json!({"cniVersion": "0.3.1", "name": "linkerd-cni", "type": "linkerd-cni", "linkerd": {"a": 1}})
        );
        let own = r#"{"name":"mine","cniVersion":"1.0.0","type":"linkerd-cni"}"#;
        assert_eq!(conf(own), serde_json::from_str::<Value>(own).unwrap());
    }

    #[test]
    fn a_standalone_list_has_the_template_as_its_only_plugin() {
        let entry = Entry::new("{\n  \"type\": \"linkerd-cni\"\n}", "").unwrap();
        let list: Value = serde_json::from_str(&entry.as_list()).unwrap();
        assert_eq!(
            list,
            json!({"cniVersion": "0.3.1", "name": "linkerd-cni", "plugins": [{"type": "linkerd-cni"}]})
        );
    }
}
