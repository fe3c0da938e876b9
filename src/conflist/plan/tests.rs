use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Deserialize;
use testkit::table;

use super::*;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content, ForRuntime, Unreadable};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry, PLUGIN};
use crate::files::FileAccess;

const CONF: &str = r#"{"name":"n","type":"a"}"#;

/// The plugin entry as this project's chart renders it.
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

fn unreadable(for_runtime: ForRuntime) -> Result<Content, Unreadable> {
    let may_name_plugin = for_runtime == ForRuntime::MayLoad;
    Err(Unreadable { why: "is here".into(), for_runtime, may_name_plugin })
}

fn file(name: &str, kind: &str) -> ConfigFile {
    let content = match kind {
        "unreadable" => unreadable(ForRuntime::Ignored),
        "elsewhere" => unreadable(ForRuntime::MayLoad),
        "dangling" => unreadable(ForRuntime::Invalid),
        kind => Ok(content(config(kind))),
    };
    ConfigFile { name: name.to_owned(), kind: ConfigKind::from_file_name(name).unwrap(), content }
}

/// Describes each step in a few words, and a standalone config with its text.
fn described<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Vec<String> {
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

/// Returns the expected steps, with the texts of configs.
fn expanded(steps: &[String]) -> Vec<String> {
    steps.iter().map(|step| expand(step)).collect()
}

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
    /// Kinds of the network configs, by name.
    files: BTreeMap<String, String>,
    /// Standalone configs of the saved state.
    #[serde(default)]
    saved: Vec<String>,
    /// The only file of the saved state.
    only: Option<String>,
    /// Names of converted conflists, and of their originals.
    #[serde(default)]
    originals: BTreeMap<String, String>,
    steps: Option<Vec<String>>,
    unchain: Option<Vec<String>>,
    ready: Option<bool>,
    warned: Option<bool>,
    saves_only: Option<bool>,
    skipped: Option<Vec<String>>,
    chained: Option<bool>,
    called: Option<String>,
    installed: Option<String>,
    /// Texts in the reason why the node is not chained.
    #[serde(default)]
    why: Vec<String>,
    /// Texts in the warning.
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
        saved.only.clone_from(&self.only);
        for (list, conf) in &self.originals {
            let made = conflist::wrap(CONF).unwrap();
            saved.originals.insert(list.clone(), Original::new(conf, &content(CONF.into()), made));
        }
        saved
    }
}

/// Asserts that a value is the expected one, if the row has it.
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
fn each_mode_plans_its_steps_or_gives_the_reason_for_none() {
    for (name, row) in table::rows::<PlanRow>(include_str!("tests.yaml")) {
        let (mode, saved) = (row.chain_mode(), row.saved_state());
        let found: Vec<_> = row.files.iter().map(|(name, kind)| file(name, kind)).collect();

        let plan = chain(&mode, &found, &entry(), None, &saved);
        let steps = described(plan.steps.iter().chain(&plan.unchain_steps));
        assert_field(steps, row.steps.as_deref().map(expanded), &name, "steps");
        assert_field(plan.not_chained.is_none(), row.ready, &name, "ready");
        assert_contains(plan.not_chained.as_deref(), &row.why, &name, "why");
        assert_field(plan.warning.is_some(), row.warned, &name, "warned");
        assert_contains(plan.warning.as_deref(), &row.warning, &name, "warning");
        assert_field(plan.saves_only, row.saves_only, &name, "saves_only");
        assert_field(plan.skipped.into_keys().collect(), row.skipped, &name, "skipped");

        let unchain = described(&unchain(&found, &saved));
        assert_field(unchain, row.unchain.as_deref().map(expanded), &name, "unchain");
        assert_field(chained_config(&mode, &found).is_some(), row.chained, &name, "chained");
        let called = called_config(&found).map(|file| file.name.clone());
        assert_field(called, row.called.map(Some), &name, "called");
        let installed = installed_config(&mode, &found).map(|file| file.name.clone());
        assert_field(installed, row.installed.map(Some), &name, "installed");
    }
}
