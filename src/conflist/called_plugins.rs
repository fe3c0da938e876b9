//! The plugins that a network config calls, linkerd-cni included.
//!
//! A conflist has the plugins in `plugins`. A standalone config (a `.conf`, as Multus calls it) is
//! itself the one plugin.

use serde_json::Value;

use super::splice::Plugin;
use super::{Conflist, PLUGIN};

/// The plugin entry found in a network config, with what a runtime adds before it runs the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedEntry<'a> {
    /// The entry's JSON object, byte for byte.
    pub text: &'a str,
    pub name: Option<String>,
    pub version: Option<String>,
    /// Whether another plugin runs before, so that the runtime passes its result as
    /// `prevResult`.
    pub has_previous: bool,
}

pub fn plugin_entry(text: &str) -> Option<ChainedEntry<'_>> {
    let config = Conflist::parse_or_standalone(text).ok()?;
    let position = config.plugins.iter().position(Plugin::is_plugin_entry)?;
    Some(ChainedEntry {
        text: config.plugins[position].text,
        name: config.name,
        version: config.version,
        has_previous: position > 0,
    })
}

pub fn plugin_types(text: &str) -> Vec<String> {
    let plugins = Conflist::parse_or_standalone(text).map(|config| config.plugins);
    plugins.unwrap_or_default().into_iter().filter_map(|plugin| plugin.plugin_type).collect()
}

/// Returns whether a runtime may call the plugin, as an object at any depth has its `type`: the config
/// that Multus generates has a copy of the primary CNI's conflist in `delegates`. For text that is not
/// JSON, which may be half written, the plugin's name is enough.
pub fn may_call_plugin(text: &str) -> bool {
    // Skip parsing, which takes memory, unless the name is present or an escape could hide it.
    if !text.contains(PLUGIN) && !text.contains('\\') {
        return false;
    }
    match serde_json::from_str(text) {
        Ok(value) => has_plugin_type(&value),
        Err(_) => text.contains(PLUGIN),
    }
}

fn has_plugin_type(value: &Value) -> bool {
    match value {
        // Runtimes are written in Go, whose JSON decoder ignores the case of keys.
        Value::Object(members) => members.iter().any(|(key, value)| {
            key.eq_ignore_ascii_case("type") && value == PLUGIN || has_plugin_type(value)
        }),
        Value::Array(elements) => elements.iter().any(has_plugin_type),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"type": "linkerd-cni", "name": "linkerd-cni", "n": 1e3}"#;

    #[test]
    fn the_plugin_entry_is_found_in_a_conflist_and_in_a_standalone_config() {
        let list = format!(
            r#"{{"name": "net", "cniVersion": "1.0.0", "plugins": [{{"type": "bridge"}}, {ENTRY}]}}"#
        );
        let found = plugin_entry(&list).unwrap();
        assert_eq!(found.text, ENTRY);
        assert_eq!(found.name.as_deref(), Some("net"));
        assert_eq!(found.version.as_deref(), Some("1.0.0"));
        assert!(found.has_previous);
        assert_eq!(plugin_types(&list), ["bridge", "linkerd-cni"]);
        let alone = format!(r#"{{"name": "net", "plugins": [{ENTRY}]}}"#);
        assert!(!plugin_entry(&alone).unwrap().has_previous);

        let standalone = format!("\n{ENTRY}\n");
        let found = plugin_entry(&standalone).unwrap();
        assert_eq!(found.text, ENTRY);
        assert_eq!(found.name.as_deref(), Some("linkerd-cni"));
        assert_eq!((found.version, found.has_previous), (None, false));
        assert_eq!(plugin_types(&standalone), ["linkerd-cni"]);
    }

    #[test]
    fn a_network_config_without_the_plugin_has_no_entry() {
        for (text, types) in [
            ("", &[][..]),
            ("[]", &[]),
            ("{}", &[]),
            (r#"{"type": "bridge"}"#, &["bridge"]),
            (r#"{"plugins": [{"type": "bridge"}, 1]}"#, &[]),
            (r#"{"plugins": {"type": "linkerd-cni"}}"#, &[]),
            // Runtimes read `plugins` and ignore the type beside it.
            (r#"{"type": "linkerd-cni", "plugins": [{"type": "a"}]}"#, &["a"]),
        ] {
            assert_eq!(plugin_entry(text), None, "{text}");
            assert_eq!(plugin_types(text), types, "{text}");
        }
    }

    #[test]
    fn the_plugin_is_found_at_any_depth_and_in_half_written_text() {
        for (text, expected) in [
            (r#"{"type":"linkerd-cni"}"#, true),
            (r#"{"Type":"linkerd\u002dcni"}"#, true),
            (r#"{"plugins":[{"type":"calico"},{"type":"linkerd-cni"}]}"#, true),
            (r#"{"type":"multus","delegates":[{"plugins":[{"type":"linkerd-cni"}]}]}"#, true),
            (r#"{"plugins":[{"type":"calico"},{"type":"linkerd-cni"#, true),
            (r#"{"plugins":[{"type":"cal"#, false),
            ("", false),
            (r#"{"name":"linkerd-cni","plugins":[{"type":"calico"}]}"#, false),
            (r#"{"users":[{"name":"linkerd-cni"}]}"#, false),
        ] {
            assert_eq!(may_call_plugin(text), expected, "{text}");
        }
    }
}
