//! The plugin entry that the agent chains: rendered from the chart's template.

use serde_json::{Value, json};

use super::borrowed_object::{BorrowedObject, parse_error};
use super::{Error, PLUGIN};
use crate::cni::object::Object;
use crate::config::Config;

/// Placeholder in the template for the kubeconfig's path on the host.
pub const PLACEHOLDER: &str = "__KUBECONFIG_FILEPATH__";

/// CNI version of a standalone config: the oldest version that Multus and the plugin both support
/// and in which a result may lack an address. The plugin assigns no address that it could return.
const STANDALONE_VERSION: &str = "0.3.1";

/// The plugin entry to chain: the chart's template, verbatim except for the kubeconfig's path. The
/// agent adds no key of its own, because upstream's strict readers reject an unknown key.
#[derive(Clone, Debug)]
pub struct Entry {
    text: String,
    pub value: Value,
    /// Whether [`Entry::matches`] compares the text too, and not only the JSON value. Set while an
    /// upstream agent may run on the node: with the same template, its entry has an equal value,
    /// but another text, because upstream's agent formats the entry that it writes.
    pub is_exact: bool,
}

impl Entry {
    /// Renders the entry: replaces [`PLACEHOLDER`] in `template` by the path `kubeconfig`. Fails if
    /// `template` is not a JSON object with the `type` [`PLUGIN`].
    pub fn new(template: &str, kubeconfig: &str) -> Result<Entry, Error> {
        let text = template.replace(PLACEHOLDER, kubeconfig).trim().to_owned();
        let plugin = BorrowedObject::parse(&text)?;
        if plugin.string("type").as_deref() != Some(PLUGIN) {
            return Err(Error::WrongType);
        }
        let value = serde_json::from_str(&text).map_err(|error| parse_error(&text, &error))?;
        Ok(Entry { text, value, is_exact: false })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether `text`, the text of a plugin entry in a network config, is this entry. Only
    /// the JSON values are compared unless `is_exact` is set. So a network config that another
    /// program has reformatted is not rewritten.
    pub fn matches(&self, text: &str) -> bool {
        match serde_json::from_str::<Value>(text) {
            Ok(value) if value == self.value => {
                !self.is_exact || unindented_lines(text).eq(unindented_lines(&self.text))
            }
            _ => false,
        }
    }

    /// Returns whether the plugin works with this entry: whether its settings are valid, and its
    /// kubeconfig is the one at the path `kubeconfig` on the host, which the agent keeps correct.
    /// The token in another kubeconfig may be invalid.
    pub fn is_usable(&self, kubeconfig: &str) -> bool {
        let config: Result<Object, _> = serde_json::from_str(&self.text);
        self.value["kubernetes"]["kubeconfig"] == kubeconfig
            && config.is_ok_and(|config| Config::read(&config).is_ok())
    }

    /// Returns whether upstream's agent or a person may have written the plugin entry `text`, and
    /// not an agent of this project.
    ///
    /// Only this project's chart sets the key `agent-namespace`, so an entry with that key is this
    /// project's. If this agent's own entry lacks the key, as under upstream's manifests, the key
    /// says nothing. Then another entry counts as foreign only if upstream's agent has left its
    /// kubeconfig on the node, which `is_exact` says.
    ///
    /// An entry with the value of this one, but another text, is foreign despite the key: the
    /// container of an upstream agent has restarted during the upgrade, and reads the ConfigMap of
    /// this release.
    pub fn is_foreign(&self, text: &str) -> bool {
        if self.matches(text) {
            return false;
        }
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        if value == self.value {
            return true;
        }
        !has_agent_namespace(&value) && (self.is_exact || has_agent_namespace(&self.value))
    }

    /// Renders a standalone `.conf`: the template, with defaults for a missing `cniVersion` and a
    /// missing `name`. A name is needed because Multus finds the network config by its name.
    pub fn standalone_conf(&self) -> String {
        let mut conf = self.value.clone();
        for (key, default) in [("cniVersion", STANDALONE_VERSION), ("name", PLUGIN)] {
            if conf[key].is_null() {
                conf[key] = default.into();
            }
        }
        format!("{conf:#}\n")
    }

    /// Renders a standalone conflist, whose only plugin is the entry.
    pub fn standalone_conflist(&self) -> String {
        let conflist =
            json!({"cniVersion": STANDALONE_VERSION, "name": PLUGIN, "plugins": [self.value]});
        format!("{conflist:#}\n")
    }
}

fn has_agent_namespace(entry: &Value) -> bool {
    !entry["linkerd"]["agent-namespace"].is_null()
}

/// Returns the lines of `text` without their indentation, because an entry that is spliced into a
/// conflist gets the indentation of the other plugins.
fn unindented_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders the template as a standalone `.conf`, and parses it.
    fn standalone_conf(template: &str) -> Value {
        serde_json::from_str(&Entry::new(template, "").unwrap().standalone_conf()).unwrap()
    }

    #[test]
    fn standalone_config_has_a_name_a_version_and_the_whole_template() {
        assert_eq!(
            standalone_conf(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#),
            json!({
                "cniVersion": "0.3.1",
                "name": "linkerd-cni",
                "type": "linkerd-cni",
                "linkerd": {"a": 1}
            })
        );
        let complete = r#"{"name":"mine","cniVersion":"1.0.0","type":"linkerd-cni"}"#;
        assert_eq!(standalone_conf(complete), serde_json::from_str::<Value>(complete).unwrap());
    }

    #[test]
    fn standalone_conflist_has_the_template_as_its_only_plugin() {
        let entry = Entry::new("{\n  \"type\": \"linkerd-cni\"\n}", "").unwrap();
        let conflist: Value = serde_json::from_str(&entry.standalone_conflist()).unwrap();
        assert_eq!(
            conflist,
            json!({
                "cniVersion": "0.3.1",
                "name": "linkerd-cni",
                "plugins": [{"type": "linkerd-cni"}]
            })
        );
    }

    #[test]
    fn exact_entry_does_not_match_an_equal_entry_in_another_format() {
        let mut entry = Entry::new("{\n  \"type\": \"linkerd-cni\",\n  \"a\": [1]\n}", "").unwrap();
        let spliced = entry.text().replace('\n', "\n    ");
        let formatted = "{\n  \"a\": [1],\n  \"type\": \"linkerd-cni\"\n}";
        for is_exact in [false, true] {
            entry.is_exact = is_exact;
            assert!(entry.matches(&spliced) && !entry.matches(&spliced.replace('1', "2")));
            assert_eq!(entry.matches(formatted), !is_exact);
            assert_eq!(entry.matches(&formatted.replace(char::is_whitespace, "")), !is_exact);
        }
    }
}
