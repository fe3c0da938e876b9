//! The plugin entry that the agent chains: rendered from the chart's template.

use serde_json::{Value, json};

use super::borrowed_object::{BorrowedObject, syntax};
use super::{Error, PLUGIN};

/// Placeholder in the template for the kubeconfig's path on the host.
pub const PLACEHOLDER: &str = "__KUBECONFIG_FILEPATH__";

/// CNI version of a standalone config: the oldest version that Multus and the plugin both support
/// and whose result may lack an address. The plugin has no address to return.
const STANDALONE_VERSION: &str = "0.3.1";

/// The plugin entry to chain: the chart's template, verbatim except for the kubeconfig's path.
/// Upstream's strict readers reject any other key.
#[derive(Clone, Debug)]
pub struct Entry {
    text: String,
    pub value: Value,
    /// Whether an equal entry with another text is a different entry. It is upstream's if an
    /// upstream agent with the same template runs on the node: upstream's agents format the entry.
    pub is_exact: bool,
}

impl Entry {
    /// Renders the entry: replaces [`PLACEHOLDER`] in `template` by `kubeconfig`. Fails if
    /// `template` is not a JSON object with the `type` [`PLUGIN`].
    pub fn new(template: &str, kubeconfig: &str) -> Result<Entry, Error> {
        let text = template.replace(PLACEHOLDER, kubeconfig).trim().to_owned();
        let plugin = BorrowedObject::parse(&text)?;
        if plugin.string("type").as_deref() != Some(PLUGIN) {
            return Err(Error::WrongType);
        }
        let value = serde_json::from_str(&text).map_err(|error| syntax(&text, &error))?;
        Ok(Entry { text, value, is_exact: false })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether `found` in a network config is this entry. Unless it is exact, a network
    /// config that another program reformatted needs no rewrite.
    pub fn matches(&self, found: &str) -> bool {
        match serde_json::from_str::<Value>(found) {
            Ok(value) if value == self.value => {
                !self.is_exact || unindented_lines(found).eq(unindented_lines(&self.text))
            }
            _ => false,
        }
    }

    /// Returns whether another program than an agent of this project may have written the plugin
    /// entry `found`: upstream's agent, or a person. This project's chart sets `agent-namespace`.
    /// Under upstream's manifests, only a kubeconfig of upstream's agent shows that there was one:
    /// `is_exact` says so.
    pub fn is_foreign(&self, found: &str) -> bool {
        if self.matches(found) {
            return false;
        }
        let is_of_chart =
            serde_json::from_str::<Value>(found).is_ok_and(|found| has_agent_namespace(&found));
        !is_of_chart && (self.is_exact || has_agent_namespace(&self.value))
    }

    /// Renders a standalone `.conf`: the template with defaults for a missing `cniVersion` and
    /// `name`. Multus finds the network config by its name.
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
        let list =
            json!({"cniVersion": STANDALONE_VERSION, "name": PLUGIN, "plugins": [self.value]});
        format!("{list:#}\n")
    }
}

fn has_agent_namespace(entry: &Value) -> bool {
    !entry["linkerd"]["agent-namespace"].is_null()
}

/// Returns the lines without their indentation, which a conflist gives the entry.
fn unindented_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(template: &str) -> Value {
        serde_json::from_str(&Entry::new(template, "").unwrap().standalone_conf()).unwrap()
    }

    #[test]
    fn a_standalone_config_has_a_name_a_version_and_the_whole_template() {
        assert_eq!(
            conf(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#),
            json!({
                "cniVersion": "0.3.1",
                "name": "linkerd-cni",
                "type": "linkerd-cni",
                "linkerd": {"a": 1}
            })
        );
        let own = r#"{"name":"mine","cniVersion":"1.0.0","type":"linkerd-cni"}"#;
        assert_eq!(conf(own), serde_json::from_str::<Value>(own).unwrap());
    }

    #[test]
    fn a_standalone_conflist_has_the_template_as_its_only_plugin() {
        let entry = Entry::new("{\n  \"type\": \"linkerd-cni\"\n}", "").unwrap();
        let list: Value = serde_json::from_str(&entry.standalone_conflist()).unwrap();
        assert_eq!(
            list,
            json!({
                "cniVersion": "0.3.1",
                "name": "linkerd-cni",
                "plugins": [{"type": "linkerd-cni"}]
            })
        );
    }

    #[test]
    fn an_exact_entry_is_told_from_an_equal_one_in_another_format() {
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
