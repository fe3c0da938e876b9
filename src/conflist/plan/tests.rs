use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Deserialize;
use testkit::table;

use super::*;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content, RuntimeReaction, Unreadable};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry, PLUGIN};
use crate::files::FileAccess;

const CONF: &str = r#"{"name":"n","type":"a"}"#;

/// The plugin entry as this project's chart renders it.
fn entry() -> Entry {
    Entry::new(r#"{"type":"linkerd-cni","linkerd":{"agent-namespace":"cni"}}"#, "").unwrap()
}

/// Returns the text of a config of this kind. `tests.yaml` describes the kinds.
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

fn unreadable(runtime: RuntimeReaction) -> Result<Content, Unreadable> {
    let may_name_plugin = runtime == RuntimeReaction::MayLoad;
    Err(Unreadable { why: "is unreadable".into(), runtime, may_name_plugin })
}

fn file(name: &str, kind: &str) -> ConfigFile {
    let content = match kind {
        "ignored" => unreadable(RuntimeReaction::Ignores),
        "runtime only" => unreadable(RuntimeReaction::MayLoad),
        "dangling" => unreadable(RuntimeReaction::FailsToLoad),
        kind => Ok(content(config(kind))),
    };
    ConfigFile { name: name.to_owned(), kind: ConfigKind::from_file_name(name).unwrap(), content }
}

fn describe_all<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Vec<String> {
    steps.into_iter().map(describe).collect()
}

/// Describes a step in a few words. The words for a standalone config include its text.
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

fn expand_all(steps: &[String]) -> Vec<String> {
    steps.iter().map(|step| expand(step)).collect()
}

/// Replaces the kind of config in an expected step by the text of that config.
fn expand(step: &str) -> String {
    match step.split_once('=') {
        Some((name, kind)) => format!("{name}={}", config(kind)),
        None => step.to_owned(),
    }
}

/// A row of `tests.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanRow {
    #[serde(default)]
    mode: Mode,
    /// Kinds of the network configs, by file name.
    files: BTreeMap<String, String>,
    /// Names of the standalone configs in the saved state.
    #[serde(default)]
    saved: Vec<String>,
    /// `SavedState::only_config`.
    only: Option<String>,
    /// Names of the originals in the saved state, by the name of the conflist made from each.
    #[serde(default)]
    originals: BTreeMap<String, String>,
    steps: Option<Vec<String>>,
    unchain: Option<Vec<String>>,
    ready: Option<bool>,
    warned: Option<bool>,
    saves_only_config: Option<bool>,
    skipped: Option<Vec<String>>,
    chained: Option<bool>,
    called: Option<String>,
    installed: Option<String>,
    /// Parts of the reason why the plugin is not chained.
    #[serde(default)]
    why: Vec<String>,
    /// Parts of the warning.
    #[serde(default)]
    warning: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Every,
    Only(String),
    Standalone(String),
}

impl PlanRow {
    fn chain_mode(&self) -> ChainMode {
        match &self.mode {
            Mode::Every => ChainMode::Every,
            Mode::Only(config) => ChainMode::Only(config.clone()),
            Mode::Standalone(config) => ChainMode::Standalone(config.clone()),
        }
    }

    fn saved_state(&self) -> SavedState {
        let mut saved = SavedState::default();
        saved.standalone_configs.extend(self.saved.iter().cloned());
        saved.only_config.clone_from(&self.only);
        for (conflist_name, conf_name) in &self.originals {
            let without_entry = conflist::wrap(CONF).unwrap();
            let original = Original::new(conf_name, &content(CONF.into()), without_entry);
            saved.originals.insert(conflist_name.clone(), original);
        }
        saved
    }
}

/// Asserts that a value is the expected one, unless the row expects no value in particular.
fn assert_field<T: PartialEq + Debug>(found: T, expected: Option<T>, row: &str, field: &str) {
    if let Some(expected) = expected {
        assert_eq!(found, expected, "{row}: {field}");
    }
}

fn assert_contains(text: Option<&str>, parts: &[String], row: &str, field: &str) {
    for part in parts {
        assert!(text.is_some_and(|text| text.contains(part)), "{row}: {field}: {text:?}");
    }
}

#[test]
fn each_mode_plans_the_expected_steps_and_says_whether_the_node_is_ready() {
    for (name, row) in table::rows::<PlanRow>(include_str!("tests.yaml")) {
        let (mode, saved) = (row.chain_mode(), row.saved_state());
        let found: Vec<_> = row.files.iter().map(|(name, kind)| file(name, kind)).collect();

        let plan = chain(&mode, &found, &entry(), None, &saved);
        let steps = describe_all(plan.steps.iter().chain(&plan.unchain_steps));
        assert_field(steps, row.steps.as_deref().map(expand_all), &name, "steps");
        assert_field(plan.not_chained.is_none(), row.ready, &name, "ready");
        assert_contains(plan.not_chained.as_deref(), &row.why, &name, "why");
        assert_field(plan.warning.is_some(), row.warned, &name, "warned");
        assert_contains(plan.warning.as_deref(), &row.warning, &name, "warning");
        assert_field(plan.saves_only_config, row.saves_only_config, &name, "saves_only_config");
        assert_field(plan.skipped.into_keys().collect(), row.skipped, &name, "skipped");

        let unchain_steps = describe_all(&unchain(&found, &saved));
        assert_field(unchain_steps, row.unchain.as_deref().map(expand_all), &name, "unchain");
        assert_field(chained_config(&mode, &found).is_some(), row.chained, &name, "chained");
        let called = called_config(&found).map(|file| file.name.clone());
        assert_field(called, row.called.map(Some), &name, "called");
        let installed = installed_config(&mode, &found).map(|file| file.name.clone());
        assert_field(installed, row.installed.map(Some), &name, "installed");
    }
}
