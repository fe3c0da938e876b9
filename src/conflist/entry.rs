//! The plugin entry that the agent chains: rendered from the chart's template.

use serde_json::Value;

use super::PLUGIN;
use super::borrowed_object::{BorrowedObject, span};
use super::error::{Error, syntax};

/// Placeholder in the template for the kubeconfig's path on the host.
pub const PLACEHOLDER: &str = "__KUBECONFIG_FILEPATH__";

/// CNI version of a standalone config: the oldest version that Multus and the plugin both support
/// and whose result may lack an address. The plugin has no address to return.
const VERSION: &str = "0.3.1";

/// Member of the plugin entry that holds the plugin's own settings.
const SETTINGS: &str = "linkerd";

/// The plugin entry to chain: the chart's template, verbatim except for the kubeconfig's path and
/// the settings that [`Entry::with_setting`] adds.
#[derive(Clone, Debug)]
pub struct Entry {
    text: String,
    value: Value,
}

impl Entry {
    /// Renders the entry from `template`, with `kubeconfig` in place of [`PLACEHOLDER`].
    ///
    /// # Errors
    /// Fails if `template` is not a JSON object with the `type` [`PLUGIN`].
    pub fn new(template: &str, kubeconfig: &str) -> Result<Entry, Error> {
        let text = template.replace(PLACEHOLDER, kubeconfig).trim().to_owned();
        let plugin = BorrowedObject::parse(&text)?;
        if plugin.string("type").as_deref() != Some(PLUGIN) {
            return Err(Error::WrongType);
        }
        let value = serde_json::from_str(&text).map_err(|error| syntax(&text, &error))?;
        Ok(Entry { text, value })
    }

    /// Returns the JSON text that is spliced into a conflist.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the entry parsed, to compare entries regardless of formatting.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Adds the plugin setting `key`, which only the agent knows. A value that the template sets
    /// wins. Nothing is added if the template has no settings object. All other bytes stay.
    pub fn with_setting(self, key: &str, value: &str) -> Entry {
        let added = add_setting(&self.text, key, value);
        let parsed = added.and_then(|text| Some((serde_json::from_str(&text).ok()?, text)));
        match parsed {
            Some((value, text)) => Entry { text, value },
            None => self,
        }
    }

    /// Renders a standalone `.conf`: the template with defaults for a missing `cniVersion` and
    /// `name`. Multus finds the network config by its name.
    pub fn standalone_conf(&self) -> String {
        let template = BorrowedObject::parse(&self.text).ok();
        let lacks = |key: &str| template.as_ref().is_none_or(|object| object.get(key).is_none());
        let mut added = String::new();
        for (key, value) in [("cniVersion", VERSION), ("name", PLUGIN)] {
            if lacks(key) {
                added.push_str(&format!("\n  \"{key}\": \"{value}\","));
            }
        }
        // The comma at the end of `added` is valid: the template has at least a `type`.
        let members = self.text.strip_prefix('{').unwrap_or_default();
        format!("{{{added}{members}\n")
    }

    /// Renders a standalone `.conflist`, whose only plugin is the entry.
    pub fn standalone_conflist(&self) -> String {
        let entry = self.text.replace('\n', "\n    ");
        format!(
            "{{\n  \"cniVersion\": \"{VERSION}\",\n  \"name\": \"{PLUGIN}\",\n  \"plugins\": [\n    \
             {entry}\n  ]\n}}\n"
        )
    }
}

/// Returns the entry `text` with one more member at the end of its settings, separated like the
/// members before. `None` if the setting exists or there is no settings object.
fn add_setting(text: &str, key: &str, value: &str) -> Option<String> {
    let settings = BorrowedObject::parse(text).ok()?.get(SETTINGS)?.get();
    if BorrowedObject::parse(settings).ok()?.get(key).is_some() {
        return None;
    }
    let inside = settings.strip_prefix('{')?.strip_suffix('}')?;
    let members = inside.trim_end();
    let member = format!("{}: {}", serde_json::Value::from(key), serde_json::Value::from(value));
    let member = match members.trim_start() {
        "" => member,
        first => format!(",{}{member}", members.strip_suffix(first)?),
    };
    let end = span(text, settings).start + 1 + members.len();
    let mut text = text.to_owned();
    text.insert_str(end, &member);
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conflist::Conflist;

    fn conf(template: &str) -> Value {
        serde_json::from_str(&Entry::new(template, "").unwrap().standalone_conf()).unwrap()
    }

    #[test]
    fn a_standalone_config_has_a_name_a_version_and_the_whole_template() {
        assert_eq!(
            conf(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#),
            json!({"cniVersion": "0.3.1", "name": "linkerd-cni", "type": "linkerd-cni", "linkerd": {"a": 1}})
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
            json!({"cniVersion": "0.3.1", "name": "linkerd-cni", "plugins": [{"type": "linkerd-cni"}]})
        );
    }

    fn added(template: &str) -> String {
        let entry = Entry::new(template, "/k").unwrap();
        let entry = entry.with_setting("agent-namespace", "mesh");
        let value: Value = serde_json::from_str(entry.text()).unwrap();
        assert_eq!(value, entry.value);
        entry.text().to_owned()
    }

    #[test]
    fn a_setting_is_appended_to_the_settings_and_changes_no_other_byte() {
        for (template, expected) in [
            (
                "{\n  \"type\": \"linkerd-cni\",\n  \"linkerd\": {\n    \"a\": 1e3,\n    \"b\": [ {} ]\n  },\n  \"z\": \"é\"\n}",
                "{\n  \"type\": \"linkerd-cni\",\n  \"linkerd\": {\n    \"a\": 1e3,\n    \"b\": [ {} ],\n    \"agent-namespace\": \"mesh\"\n  },\n  \"z\": \"é\"\n}",
            ),
            (
                r#"{"linkerd":{"a":"}"},"type":"linkerd-cni"}"#,
                r#"{"linkerd":{"a":"}","agent-namespace": "mesh"},"type":"linkerd-cni"}"#,
            ),
            (
                r#"{"linkerd":{ },"type":"linkerd-cni"}"#,
                r#"{"linkerd":{"agent-namespace": "mesh" },"type":"linkerd-cni"}"#,
            ),
            (
                r#"{"linkerd":{"a":1},"type":"linkerd-cni","linkerd":{"b":2}}"#,
                r#"{"linkerd":{"a":1},"type":"linkerd-cni","linkerd":{"b":2,"agent-namespace": "mesh"}}"#,
            ),
        ] {
            assert_eq!(added(template), expected);
        }
    }

    #[test]
    fn a_template_that_has_the_setting_or_no_settings_is_unchanged() {
        for template in [
            r#"{"type":"linkerd-cni","linkerd":{"agent-namespace":"cni"}}"#,
            r#"{"type":"linkerd-cni","linkerd":{"agent\u002dnamespace":""}}"#,
            r#"{"type":"linkerd-cni","linkerd":{"agent-namespace":null}}"#,
            r#"{"type":"linkerd-cni","linkerd":null}"#,
            r#"{"type":"linkerd-cni","linkerd":[]}"#,
            r#"{"type":"linkerd-cni"}"#,
        ] {
            assert_eq!(added(template), template);
        }
    }

    #[test]
    fn a_value_is_quoted_as_json() {
        let entry = Entry::new(r#"{"type":"linkerd-cni","linkerd":{}}"#, "/k").unwrap();
        let entry = entry.with_setting("a", "\"},\n");
        assert_eq!(entry.value["linkerd"]["a"], "\"},\n");
    }

    #[test]
    fn an_entry_with_a_new_setting_differs_from_the_entry_without_it() {
        let plain = Entry::new(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#, "/k").unwrap();
        let set = plain.clone().with_setting("agent-namespace", "mesh");
        let text = r#"{"name":"n","plugins":[{"type":"calico"}]}"#;
        let patched = Conflist::parse_chainable(text).unwrap().with_entry(&set);
        let list = Conflist::parse_chainable(&patched).unwrap();
        assert!(list.has_entry(&set) && !list.has_entry(&plain), "{patched}");
        assert_eq!(list.with_entry(&set), patched);
        assert_eq!(list.without_entry(), text);
    }
}
