//! Whether a network config may make a runtime call the plugin, wherever it is named.

use serde_json::Value;

use super::PLUGIN;

/// Whether `text` has an object with the plugin's type, at any depth: the config that
/// Multus generates holds a copy of the primary CNI's conflist in its `delegates`. Text
/// that is not JSON may be half written, so the plugin's name in it is enough.
pub fn may_call_plugin(text: &str) -> bool {
    // Parsing takes memory, and most text needs none: an escape could hide the name.
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

    #[test]
    fn the_plugin_is_found_at_any_depth_and_in_half_written_text() {
        for (text, expected) in [
            (r#"{"type":"linkerd-cni"}"#, true),
            (r#"{"Type":"linkerd\u002dcni"}"#, true),
            (
                r#"{"plugins":[{"type":"calico"},{"type":"linkerd-cni"}]}"#,
                true,
            ),
            (
                r#"{"type":"multus","delegates":[{"plugins":[{"type":"linkerd-cni"}]}]}"#,
                true,
            ),
            (
                r#"{"plugins":[{"type":"calico"},{"type":"linkerd-cni"#,
                true,
            ),
            (r#"{"plugins":[{"type":"cal"#, false),
            ("", false),
            (
                r#"{"name":"linkerd-cni","plugins":[{"type":"calico"}]}"#,
                false,
            ),
            (r#"{"users":[{"name":"linkerd-cni"}]}"#, false),
        ] {
            assert_eq!(may_call_plugin(text), expected, "{text}");
        }
    }
}
