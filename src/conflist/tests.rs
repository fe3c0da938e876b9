use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table::{self, RowName};

use super::*;

mod generated;

/// A template like the one that the chart renders.
const TEMPLATE: &str = include_str!("tests/template.json");

fn entry() -> Entry {
    Entry::new(TEMPLATE, "/etc/cni/net.d/kc").unwrap()
}

/// Returns the names and the texts of the conflists that real primary CNIs write.
fn corpus() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conflist/corpus");
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        files.push((name, std::fs::read_to_string(path).unwrap()));
    }
    files
}

/// Returns the types of the plugins in the conflist `text`.
fn types(text: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(text).unwrap();
    let plugins = value["plugins"].as_array().unwrap().iter();
    plugins.map(|plugin| plugin["type"].as_str().unwrap_or("none").to_owned()).collect()
}

#[test]
fn unchaining_restores_real_conflists_byte_for_byte() {
    let corpus = corpus();
    assert!(corpus.len() >= 11, "{}", corpus.len());
    for (name, original) in corpus {
        let conflist = Conflist::parse_chainable(&original).unwrap();
        assert_eq!(conflist.check_loadable(), Ok(()), "{name}");
        assert!(!conflist.calls_plugin() && !conflist.has_entry(&entry()), "{name}");
        let chained_text = conflist.with_entry(&entry());
        let chained = Conflist::parse_chainable(&chained_text).unwrap();
        assert!(chained.has_entry(&entry()), "{name}:\n{chained_text}");
        assert_eq!(chained.without_entry(), original, "{name}");
        assert_eq!(chained.with_entry(&entry()), chained_text, "{name}");
        let mut expected = types(&original);
        expected.push(PLUGIN.into());
        assert_eq!(types(&chained_text), expected, "{name}");
    }
}

#[test]
fn entry_of_several_lines_is_indented_beside_plugins_on_one_line() {
    let text = "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"}\n  ]\n}\n";
    let small = Entry::new("{\n  \"type\": \"linkerd-cni\"\n}\n", "").unwrap();
    assert_eq!(
        Conflist::parse_chainable(text).unwrap().with_entry(&small),
        "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"},\n    {\n      \
         \"type\": \"linkerd-cni\"\n    }\n  ]\n}\n"
    );
}

/// Returns the conflist with another plugin behind the last one.
fn append_istio(text: &str) -> String {
    let end = text.rfind(']').unwrap();
    format!("{},\n\t{{ \"type\": \"istio-cni\" }}{}", &text[..end], &text[end..])
}

#[test]
fn plugin_after_the_plugin_entry_is_kept() {
    for (_, original) in corpus() {
        let chained_text = Conflist::parse_chainable(&original).unwrap().with_entry(&entry());
        let appended = append_istio(&chained_text);
        let conflist = Conflist::parse_chainable(&appended).unwrap();
        assert!(conflist.has_entry(&entry()), "{appended}");
        assert_eq!(conflist.without_entry(), append_istio(&original));
    }
}

/// libcni decodes a plugin into a Go struct, whose keys may have any case. It decodes a conflist
/// into a map, whose keys have to match exactly.
#[test]
fn keys_of_a_plugin_match_in_any_case_and_keys_of_a_conflist_exactly() {
    let text =
        r#"{"name":"n","\ud800":1,"plugins":[{"Type":"a"},{"type":"b","TYPE":"linkerd-cni"}]}"#;
    let conflist = Conflist::parse_chainable(text).unwrap();
    assert_eq!(conflist.check_loadable(), Ok(()));
    assert!(conflist.calls_plugin());
    assert_eq!(Conflist::parse_any(r#"{"Plugins":[]}"#).err(), Some(Error::NoPlugins));
    let conf = r#"{"Type":"bridge","Name":"net","CNIVersion":"0.4.0"}"#;
    assert_eq!(check_conf_loadable(conf), Ok(()));
    let wrapped: Value = serde_json::from_str(&wrap(conf).unwrap()).unwrap();
    assert_eq!((&wrapped["name"], &wrapped["cniVersion"]), (&json!("net"), &json!("0.4.0")));
}

/// A row of a table in `invalid.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidText {
    text: String,
    error: String,
}

fn invalid_texts(table: &str) -> impl Iterator<Item = (RowName, InvalidText)> {
    table::rows_of(include_str!("tests/invalid.yaml"), table)
}

#[test]
fn invalid_network_config_is_rejected_with_the_reason() {
    for (name, row) in invalid_texts("conflist") {
        let error = Conflist::parse_chainable(&row.text).unwrap_err();
        assert_eq!(error.to_string(), row.error, "{name}");
    }
    for (name, row) in invalid_texts("loadable") {
        let conflist = Conflist::parse_chainable(&row.text).unwrap();
        assert_eq!(conflist.check_loadable().unwrap_err().to_string(), row.error, "{name}");
    }
    for (name, row) in invalid_texts("plugin") {
        assert_eq!(wrap(&row.text).unwrap_err().to_string(), row.error, "{name}");
    }
    for (name, row) in invalid_texts("template") {
        assert_eq!(Entry::new(&row.text, "").unwrap_err().to_string(), row.error, "{name}");
    }
    let valid = r#"{"name":"n","plugins":[{"type":"a"}]}"#;
    assert_eq!(Conflist::parse_chainable(valid).unwrap().check_loadable(), Ok(()));
}

#[test]
fn deep_nesting_is_parsed_without_recursion() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = format!(r#"{{"name":"n","x":{deep},"plugins":[{{"type":"a"}}]}}"#);
    assert_eq!(Conflist::parse_chainable(&text).unwrap().plugins.len(), 1);
}

#[test]
fn wrapped_conf_keeps_name_version_and_bytes() {
    let conf =
        "{\"cniVersion\": \"0.4.0\",\n \"type\": \"calico\", \"big\": 1e3, \"name\": \"n\"}\n";
    let wrapped = wrap(conf).unwrap();
    let value: Value = serde_json::from_str(&wrapped).unwrap();
    assert_eq!(value["cniVersion"], "0.4.0");
    assert_eq!(value["name"], "n");
    assert!(wrapped.contains(conf.trim()));
    assert_eq!(types(&wrapped), ["calico"]);
    let chained_text = Conflist::parse_chainable(&wrapped).unwrap().with_entry(&entry());
    assert_eq!(Conflist::parse_chainable(&chained_text).unwrap().without_entry(), wrapped);
    // A conf without a version is wrapped without one. A conf without a name gets upstream's
    // default name.
    let value: Value = serde_json::from_str(&wrap(r#"{"type":"a"}"#).unwrap()).unwrap();
    assert_eq!((&value["cniVersion"], &value["name"]), (&Value::Null, &json!("k8s-pod-network")));
}

#[test]
fn every_placeholder_is_replaced_with_the_kubeconfig_path() {
    let template =
        r#"{"type":"linkerd-cni","a":"__KUBECONFIG_FILEPATH__","b":"x:__KUBECONFIG_FILEPATH__"}"#;
    let entry = Entry::new(template, "/etc/kc").unwrap();
    assert_eq!(entry.value["a"], "/etc/kc");
    assert_eq!(entry.value["b"], "x:/etc/kc");
}

const ENTRY: &str = r#"{"type": "linkerd-cni", "name": "linkerd-cni", "n": 1e3}"#;

#[test]
fn plugin_entry_is_found_in_a_conflist_and_in_a_standalone_config() {
    let conflist = format!(
        r#"{{"name": "net", "cniVersion": "1.0.0", "plugins": [{{"type": "bridge"}}, {ENTRY}]}}"#
    );
    let found = plugin_entry(&conflist).unwrap();
    assert_eq!(found.text, ENTRY);
    assert_eq!(found.name.as_deref(), Some("net"));
    assert_eq!(found.version.as_deref(), Some("1.0.0"));
    assert!(found.has_previous);
    assert_eq!(plugin_types(&conflist), ["bridge", "linkerd-cni"]);
    let without_other_plugin = format!(r#"{{"name": "net", "plugins": [{ENTRY}]}}"#);
    assert!(!plugin_entry(&without_other_plugin).unwrap().has_previous);

    let standalone = format!("\n{ENTRY}\n");
    let found = plugin_entry(&standalone).unwrap();
    assert_eq!(found.text, ENTRY);
    assert_eq!(found.name.as_deref(), Some("linkerd-cni"));
    assert_eq!((found.version, found.has_previous), (None, false));
    assert_eq!(plugin_types(&standalone), ["linkerd-cni"]);
}

#[test]
fn network_config_without_the_plugin_has_no_entry() {
    for (text, types) in [
        ("", &[][..]),
        ("[]", &[]),
        ("{}", &[]),
        (r#"{"type": "bridge"}"#, &["bridge"]),
        (r#"{"plugins": [{"type": "bridge"}, 1]}"#, &[]),
        (r#"{"plugins": {"type": "linkerd-cni"}}"#, &[]),
        // Runtimes read `plugins` and ignore the type beside it, so this config does not call the
        // plugin.
        (r#"{"type": "linkerd-cni", "plugins": [{"type": "a"}]}"#, &["a"]),
    ] {
        assert_eq!(plugin_entry(text), None, "{text}");
        assert_eq!(plugin_types(text), types, "{text}");
    }
}
