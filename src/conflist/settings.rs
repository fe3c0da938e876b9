//! Settings of the plugin that only the agent knows, added to the plugin entry.

use super::{Entry, Object, span};

/// The member of the plugin entry that holds the plugin's own settings.
const SETTINGS: &str = "linkerd";

impl Entry {
    /// Adds the setting `key`, unless the template has one: then the template's wins. All
    /// other bytes stay as they are. Without an object of settings nothing is added.
    pub fn with_setting(self, key: &str, value: &str) -> Entry {
        let added = add(&self.text, key, value);
        let parsed = added.and_then(|text| Some((serde_json::from_str(&text).ok()?, text)));
        match parsed {
            Some((value, text)) => Entry { text, value },
            None => self,
        }
    }
}

/// `text` with one more member at the end of its settings, separated as the others are.
fn add(text: &str, key: &str, value: &str) -> Option<String> {
    let settings = Object::parse(text).ok()?.get(SETTINGS)?.get();
    if Object::parse(settings).ok()?.get(key).is_some() {
        return None;
    }
    let inside = settings.strip_prefix('{')?.strip_suffix('}')?;
    let members = inside.trim_end();
    let member = format!(
        "{}: {}",
        serde_json::Value::from(key),
        serde_json::Value::from(value)
    );
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
    use serde_json::Value;

    use super::*;
    use crate::conflist::List;

    fn added(template: &str) -> String {
        let entry = Entry::new(template, "/k").unwrap();
        let entry = entry.with_setting("agent-namespace", "mesh");
        let value: Value = serde_json::from_str(entry.text()).unwrap();
        assert_eq!(value, entry.value);
        entry.text().to_owned()
    }

    #[test]
    fn a_setting_goes_to_the_end_of_the_settings_and_changes_no_other_byte() {
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
    fn a_template_that_has_the_setting_or_no_settings_stays_as_it_is() {
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
    fn a_list_carries_the_entry_with_the_setting_and_not_the_one_without() {
        let plain = Entry::new(r#"{"type":"linkerd-cni","linkerd":{"a":1}}"#, "/k").unwrap();
        let set = plain.clone().with_setting("agent-namespace", "mesh");
        let text = r#"{"name":"n","plugins":[{"type":"calico"}]}"#;
        let patched = List::parse(text).unwrap().with(&set);
        let list = List::parse(&patched).unwrap();
        assert!(list.carries(&set) && !list.carries(&plain), "{patched}");
        assert_eq!(list.with(&set), patched);
        assert_eq!(list.without(), text);
    }
}
