use std::path::Path;

use super::*;

/// As the chart renders it.
const TEMPLATE: &str = r#"{
  "name": "linkerd-cni",
  "type": "linkerd-cni",
  "log_level": "info",
  "kubernetes": {
      "kubeconfig": "__KUBECONFIG_FILEPATH__"
  },
  "linkerd": {
    "incoming-proxy-port": 4143,
    "inbound-ports-to-ignore": ["4191","4190"]
  }
}"#;

fn entry() -> Entry {
    Entry::new(TEMPLATE, "/etc/cni/net.d/kc").unwrap()
}

fn corpus() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conflist/corpus");
    let files = std::fs::read_dir(dir).unwrap().map(|file| {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    files.collect()
}

fn types(text: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(text).unwrap();
    let plugins = value["plugins"].as_array().unwrap().iter();
    plugins
        .map(|plugin| plugin["type"].as_str().unwrap_or("none").to_owned())
        .collect()
}

#[test]
fn what_is_put_into_a_real_list_and_taken_out_leaves_every_byte_as_it_was() {
    let corpus = corpus();
    assert!(corpus.len() >= 11, "{}", corpus.len());
    for (name, original) in corpus {
        let list = List::parse(&original).unwrap();
        assert_eq!(list.loadable(), Ok(()), "{name}");
        assert!(!list.names_us() && !list.carries(&entry()), "{name}");
        let with = list.with(&entry());
        let patched = List::parse(&with).unwrap();
        assert!(patched.carries(&entry()), "{name}:\n{with}");
        assert_eq!(patched.without(), original, "{name}");
        let mut expected = types(&original);
        expected.push(PLUGIN.into());
        assert_eq!(types(&with), expected, "{name}");
    }
}

#[test]
fn putting_it_in_again_changes_nothing() {
    for (name, original) in corpus() {
        let once = List::parse(&original).unwrap().with(&entry());
        assert_eq!(List::parse(&once).unwrap().with(&entry()), once, "{name}");
    }
}

#[test]
fn a_list_on_lines_gets_the_entry_on_lines_of_its_own() {
    let text = "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"}\n  ]\n}\n";
    let small = Entry::new("{\n  \"type\": \"linkerd-cni\"\n}\n", "").unwrap();
    assert_eq!(
        List::parse(text).unwrap().with(&small),
        "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"},\n    {\n      \
         \"type\": \"linkerd-cni\"\n    }\n  ]\n}\n"
    );
}

#[test]
fn older_entries_go_wherever_they_are() {
    const OURS: &str = r#"{"type":"linkerd-cni","old":1}"#;
    for (name, plugins) in [
        (
            "first",
            format!(r#"[{OURS},{{"type":"a"}},{{"type":"b"}}]"#),
        ),
        (
            "middle",
            format!(r#"[{{"type":"a"}},{OURS},{{"type":"b"}}]"#),
        ),
        ("last", format!(r#"[{{"type":"a"}},{{"type":"b"}},{OURS}]"#)),
        (
            "twice",
            format!(r#"[{OURS},{{"type":"a"}},{OURS},{{"type":"b"}}]"#),
        ),
        (
            "many",
            format!(r#"[{OURS},{OURS},{{"type":"a"}},{{"type":"b"}},{OURS},{OURS}]"#),
        ),
    ] {
        let text = format!(r#"{{"name":"n","plugins":{plugins}}}"#);
        let list = List::parse(&text).unwrap();
        assert!(!list.carries(&entry()), "{name}");
        assert_eq!(types(&list.without()), ["a", "b"], "{name}");
        let with = list.with(&entry());
        assert_eq!(types(&with), ["a", "b", PLUGIN], "{name}");
        assert!(!with.contains("old"), "{name}");
    }
}

#[test]
fn an_entry_that_means_the_same_is_left_as_somebody_formatted_it() {
    let (_, original) = corpus().swap_remove(0);
    let with = List::parse(&original).unwrap().with(&entry());
    let value: Value = serde_json::from_str(&with).unwrap();
    for text in [value.to_string(), format!("{value:#}")] {
        assert!(List::parse(&text).unwrap().carries(&entry()));
    }
    let other = Entry::new(TEMPLATE, "/elsewhere").unwrap();
    assert!(!List::parse(&with).unwrap().carries(&other));
}

#[test]
fn what_is_no_list_is_refused_with_the_reason() {
    let syntax = |line, column| Error::Syntax { line, column };
    for (text, expected) in [
        ("", Error::Empty),
        (" \n", Error::Empty),
        ("not json", syntax(1, 2)),
        ("{\"name\":\"x\",\n\"plugins\":[{\"ty", syntax(2, 15)),
        ("\u{feff}{\"plugins\":[{\"type\":\"a\"}]}", syntax(1, 1)),
        ("{\"plugins\":[{\"type\":\"a\"}]} x", syntax(1, 28)),
        ("null", Error::NotObject),
        ("[]", Error::NotObject),
        ("\"s\"", Error::NotObject),
        ("{}", Error::NoPlugins),
        (r#"{"plugins":null}"#, Error::NoPlugins),
        (r#"{"plugins":{}}"#, Error::NoPlugins),
        (r#"{"type":"calico"}"#, Error::NoPlugins),
        (r#"{"plugins":[]}"#, Error::EmptyPlugins),
        (r#"{"plugins":[1,2,3]}"#, Error::PluginNotObject),
        (r#"{"plugins":[{"type":"linkerd-cni"}]}"#, Error::OnlyOurs),
    ] {
        assert_eq!(List::parse(text).map(|_| ()), Err(expected), "{text}");
    }
}

#[test]
fn a_list_that_a_runtime_refuses_is_known() {
    for (text, expected) in [
        (r#"{"plugins":[{"type":"a"}]}"#, Err(Error::NoName)),
        (
            r#"{"name":"","plugins":[{"type":"a"}]}"#,
            Err(Error::NoName),
        ),
        (r#"{"name":"n","plugins":[{"foo":1}]}"#, Err(Error::NoType)),
        (r#"{"name":"n","plugins":[{"type":"a"}]}"#, Ok(())),
    ] {
        assert_eq!(List::parse(text).unwrap().loadable(), expected, "{text}");
    }
}

#[test]
fn a_nested_bomb_is_read_without_recursion() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = format!(r#"{{"name":"n","x":{deep},"plugins":[{{"type":"a"}}]}}"#);
    assert_eq!(types_flat(&text), 1);
}

fn types_flat(text: &str) -> usize {
    List::parse(text).unwrap().plugins.len()
}

#[test]
fn a_single_plugin_keeps_its_name_version_and_bytes_inside_its_list() {
    let conf =
        "{\"cniVersion\": \"0.4.0\",\n \"type\": \"calico\", \"big\": 1e3, \"name\": \"n\"}\n";
    let bare = wrap(conf).unwrap();
    let value: Value = serde_json::from_str(&bare).unwrap();
    assert_eq!(value["cniVersion"], "0.4.0");
    assert_eq!(value["name"], "n");
    assert!(bare.contains(conf.trim()));
    assert_eq!(types(&bare), ["calico"]);
    let with = List::parse(&bare).unwrap().with(&entry());
    assert_eq!(List::parse(&with).unwrap().without(), bare);
}

#[test]
fn a_single_plugin_without_version_gets_none_and_without_name_upstreams() {
    let value: Value = serde_json::from_str(&wrap(r#"{"type":"a"}"#).unwrap()).unwrap();
    assert_eq!(value["cniVersion"], Value::Null);
    assert_eq!(value["name"], "k8s-pod-network");
}

#[test]
fn what_is_no_single_plugin_is_not_wrapped() {
    let list = r#"{"name":"n","plugins":[{"type":"a"}]}"#;
    assert_eq!(wrap(list).as_deref(), Ok(list));
    for (text, expected) in [
        ("", Error::Empty),
        ("null", Error::NotObject),
        (r#"{"name":"x"}"#, Error::NoPlugins),
        (r#"{"type":null}"#, Error::NoType),
        (r#"{"type":""}"#, Error::NoType),
        (r#"{"type":"linkerd-cni"}"#, Error::OnlyOurs),
    ] {
        assert_eq!(wrap(text), Err(expected), "{text}");
    }
}

#[test]
fn a_broken_template_is_refused() {
    for (template, expected) in [
        ("", Error::Empty),
        ("[]", Error::NotObject),
        ("null", Error::NotObject),
        ("{}", Error::NotOurType),
        (r#"{"type":"calico"}"#, Error::NotOurType),
    ] {
        let error = Entry::new(template, "").unwrap_err();
        assert_eq!(error, expected, "{template}");
    }
    let error = Entry::new("{", "").unwrap_err();
    assert!(matches!(error, Error::Syntax { .. }), "{error}");
}

#[test]
fn every_placeholder_becomes_the_path_on_the_host() {
    let template =
        r#"{"type":"linkerd-cni","a":"__KUBECONFIG_FILEPATH__","b":"x:__KUBECONFIG_FILEPATH__"}"#;
    let entry = Entry::new(template, "/etc/kc").unwrap();
    assert_eq!(entry.value["a"], "/etc/kc");
    assert_eq!(entry.value["b"], "x:/etc/kc");
}
