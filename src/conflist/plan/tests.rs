use serde_json::{Value, json};
use testkit::chart::yaml;

use super::*;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content, Unreadable};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry, PLUGIN};
use crate::files::FileAccess;

const CONF: &str = r#"{"name":"n","type":"a"}"#;

/// As this project's chart renders it.
fn entry() -> Entry {
    Entry::new(r#"{"type":"linkerd-cni","linkerd":{"agent-namespace":"cni"}}"#, "").unwrap()
}

/// Returns the text of a config in `tests.yaml`.
fn config(kind: &str) -> String {
    match kind.split_once(' ') {
        Some(("wrapped", kind)) => conflist::wrap(&config(kind)).unwrap(),
        Some(("chained", kind)) => {
            Conflist::parse_chainable(&config(kind)).unwrap().with_entry(&entry())
        }
        Some(("foreign", kind)) => {
            config(kind).replace(']', r#",{"type":"linkerd-cni","linkerd":{"proxy-uid":1}}]"#)
        }
        Some(("changed", kind)) => config(kind).replace("\"n\"", "\"other\""),
        Some(("outdated", kind)) => {
            config(kind).replace("linkerd-cni\"", "linkerd-cni\",\"old\":1")
        }
        _ => match kind {
            "list" => r#"{"name":"n","plugins":[{"type":"a"}]}"#.into(),
            "other" => r#"{"name":"o","plugins":[{"type":"b"}]}"#.into(),
            "conf" => CONF.into(),
            "alone" => entry().standalone_conf(),
            text => text.into(),
        },
    }
}

fn content(text: String) -> Content {
    Content { text, access: FileAccess::own(0o600), link: None }
}

fn file((name, kind): (&String, &Value)) -> ConfigFile {
    let content = match kind.as_str().unwrap() {
        kind @ ("unreadable" | "elsewhere") => {
            Err(Unreadable { why: "is here".into(), runtime_may_read: kind == "elsewhere" })
        }
        kind => Ok(content(config(kind))),
    };
    ConfigFile { name: name.clone(), kind: ConfigKind::from_file_name(name).unwrap(), content }
}

/// Describes each step in a few words, and a standalone config with its text.
fn described<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Value {
    steps.into_iter().map(describe).collect()
}

fn describe(step: &Step) -> String {
    match step {
        Step::Replace { name, text, .. } if text.contains("agent-namespace") => {
            format!("add entry to {name}")
        }
        Step::Replace { name, text, .. } if text.contains(PLUGIN) => {
            format!("remove own entry from {name}")
        }
        Step::Replace { name, .. } => format!("remove entry from {name}"),
        Step::Convert { conflist, original, .. } => {
            format!("convert {} to {conflist}", original.name)
        }
        Step::WriteStandalone { name, text, .. } => format!("{name}={text}"),
        Step::Restore { original, .. } => format!("restore {}", original.name),
        Step::Remove { name } => format!("remove file {name}"),
    }
}

/// Returns the expected value, with the texts of configs.
fn expanded(wanted: &Value) -> Value {
    match wanted.as_array() {
        Some(steps) => steps.iter().map(expand).collect(),
        None => wanted.clone(),
    }
}

fn expand(step: &Value) -> Value {
    match step.as_str().unwrap().split_once('=') {
        Some((name, kind)) => format!("{name}={}", config(kind)).into(),
        None => step.clone(),
    }
}

#[test]
fn each_mode_plans_its_steps_and_says_why_the_node_is_not_chained() {
    for (name, case) in yaml(include_str!("tests.yaml")).as_object().unwrap() {
        let config = case["mode"][1].as_str().unwrap_or_default().to_owned();
        let mode = match case["mode"][0].as_str() {
            Some("standalone") => ChainMode::Standalone(config),
            Some("only") => ChainMode::Only(config),
            _ => ChainMode::Every,
        };
        let found: Vec<_> = case["files"].as_object().unwrap().iter().map(file).collect();
        let mut saved = SavedState::default();
        let standalone = case["saved"].as_array().into_iter().flatten();
        saved.standalone_configs.extend(standalone.map(|name| name.as_str().unwrap().to_owned()));
        saved.only = case["only"].as_str().map(str::to_owned);
        for (list, conf) in case["originals"].as_object().into_iter().flatten() {
            let made = conflist::wrap(CONF).unwrap();
            let original = Original::new(conf.as_str().unwrap(), &content(CONF.into()), made);
            saved.originals.insert(list.clone(), original);
        }
        let plan = chain(&mode, &found, &entry(), None, &saved);
        for (key, got) in [
            ("steps", described(plan.steps.iter().chain(&plan.unchain_steps))),
            ("unchain", described(&unchain(&found, &saved))),
            ("ready", json!(plan.not_chained.is_none())),
            ("warned", json!(plan.warning.is_some())),
            ("saves_only", json!(plan.saves_only)),
            ("skipped", json!(plan.skipped.keys().collect::<Vec<_>>())),
            ("chained", json!(chained_config(&mode, &found).is_some())),
            ("called", json!(called_config(&found).map(|file| &file.name))),
            ("installed", json!(installed_config(&mode, &found).map(|file| &file.name))),
        ] {
            if let Some(wanted) = case.get(key) {
                assert_eq!(got, expanded(wanted), "{name}: {key}");
            }
        }
        for (key, text) in [("why", &plan.not_chained), ("warning", &plan.warning)] {
            for wanted in case[key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let has_it = text.as_deref().is_some_and(|text| text.contains(wanted));
                assert!(has_it, "{name}: {key}: {text:?}");
            }
        }
    }
}
