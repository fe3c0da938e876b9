use super::*;
use crate::conflist::chain_mode::{COPY, ChainMode, STANDALONE};
use crate::conflist::plan::tests::{CONF, LIST, describe, entry, found, with_entry};
use crate::conflist::plan::{chain, unchain};

const OTHER: &str = r#"{"name":"o","plugins":[{"type":"b"}]}"#;
const CALICO: &str = "10-calico.conflist";

fn saved(own: &str, of: Option<&str>) -> SavedState {
    let mut saved = SavedState::default();
    saved.own_configs.insert(own.into(), of.map(str::to_owned));
    saved
}

fn plan(mode: &ChainMode, files: &[(&str, &str)], saved: &SavedState) -> Plan {
    chain(mode, &found(files), &entry(), saved)
}

/// Summarises the steps and removals of a plan.
fn summary(plan: &Plan) -> Vec<String> {
    plan.steps.iter().chain(&plan.unchain_steps).map(describe).collect()
}

/// The text of a config in `modes.yaml`, or the text itself.
fn config(kind: &str) -> String {
    match kind {
        "list" => LIST.into(),
        "other" => OTHER.into(),
        "conf" => conflist::wrap(CONF).unwrap(),
        "alone" => entry().standalone_conf(),
        kind => match kind.strip_prefix("chained ") {
            Some(kind) => with_entry(&config(kind)),
            None => kind.into(),
        },
    }
}

#[test]
fn each_mode_writes_its_file_and_then_removes_those_of_another_mode() {
    let cases = testkit::chart::yaml(include_str!("tests/modes.yaml"));
    for (name, case) in cases.as_object().unwrap() {
        let file = case["mode"][1].as_str().unwrap_or_default().to_owned();
        let mode = match case["mode"][0].as_str().unwrap() {
            "copy" => ChainMode::Copy(file),
            "standalone" => ChainMode::Standalone(file),
            "only" => ChainMode::Only(file),
            _ => ChainMode::Every,
        };
        let files = case["files"].as_object().unwrap().iter();
        let files: Vec<_> = files
            .map(|(name, kind)| match kind.as_str().unwrap() {
                "conf" => (&**name, CONF.to_owned()),
                kind => (&**name, config(kind)),
            })
            .collect();
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, &**text)).collect();
        let mut saved = SavedState::default();
        for (own, of) in case["saved"].as_object().into_iter().flatten() {
            saved.own_configs.insert(own.clone(), of.as_str().map(str::to_owned));
        }
        let steps = case["steps"].as_array().unwrap().iter().map(|step| step.as_str().unwrap());
        let steps = steps.map(|step| match step.split_once('=') {
            Some((name, kind)) => format!("{name}={}", config(kind)),
            None => step.to_owned(),
        });
        let plan = plan(&mode, &files, &saved);
        assert_eq!(summary(&plan), steps.collect::<Vec<_>>(), "{name}");
        if let Some(is_ready) = case["ready"].as_bool() {
            assert_eq!(plan.not_chained.is_none(), is_ready, "{name}: {:?}", plan.not_chained);
        }
    }
}

#[test]
fn a_copy_that_is_not_active_is_not_ready() {
    let mode = ChainMode::Copy(COPY.into());
    let first = "00-a.conflist";
    let files = [(first, LIST), (COPY, &*with_entry(LIST))];
    let plan = plan(&mode, &files, &saved(COPY, Some(first)));
    let why = plan.not_chained.clone().unwrap();
    assert!(why.contains(first) && why.contains("cniConfFileName"), "{why}");
    assert!(summary(&plan).is_empty());
}

#[test]
fn a_file_of_another_program_is_never_written() {
    for mode in [ChainMode::Copy(CALICO.into()), ChainMode::Standalone(CALICO.into())] {
        for files in [&[(CALICO, LIST), ("20-o.conf", CONF)][..], &[(CALICO, LIST)]] {
            let plan = plan(&mode, files, &SavedState::default());
            assert!(summary(&plan).is_empty(), "{mode:?}");
            assert!(plan.not_chained.unwrap().contains("belongs to another program"), "{mode:?}");
        }
    }
}

#[test]
fn a_standalone_config_changes_no_other_file() {
    let mode = ChainMode::Standalone(STANDALONE.into());
    let text = entry().standalone_conf();
    let written = plan(&mode, &[(CALICO, LIST)], &SavedState::default());
    assert_eq!(summary(&written), [format!("{STANDALONE}={text}")]);
    let of = saved(STANDALONE, None);
    let files = [(CALICO, LIST), (STANDALONE, &*text)];
    let current = plan(&mode, &files, &of);
    assert!(
        summary(&current).is_empty() && current.not_chained.is_none() && current.warning.is_none()
    );
    // An active standalone config would leave pods without a network.
    let files = [(STANDALONE, &*text), ("zz.conflist", LIST)];
    let warning = plan(&mode, &files, &of).warning.unwrap();
    assert!(warning.contains("pods get no network"), "{warning}");
}

#[test]
fn only_the_named_file_is_written_once_it_exists() {
    let mode = ChainMode::Only("10-net.conf".into());
    let none = SavedState::default();
    let waiting = plan(&mode, &[(CALICO, LIST)], &none);
    assert!(summary(&waiting).is_empty());
    let why = waiting.not_chained.unwrap();
    assert!(why.contains("10-net.conf") && why.contains(CALICO), "{why}");
    let existing = plan(&mode, &[(CALICO, LIST), ("10-net.conf", CONF)], &none);
    assert_eq!(summary(&existing), ["convert 10-net.conf to 10-net.conflist"]);
    let list = with_entry(&conflist::wrap(CONF).unwrap());
    let files = [("00-multus.conf", CONF), ("10-net.conflist", &*list)];
    let ready = plan(&mode, &files, &none);
    assert!(summary(&ready).is_empty() && ready.not_chained.is_none());
    assert!(ready.warning.unwrap().contains("the active network config is 00-multus.conf"));
}

#[test]
fn uninstall_removes_a_file_that_only_the_agent_writes_whatever_its_content() {
    let of = saved(COPY, Some(CALICO));
    for text in [&*with_entry(LIST), LIST, "{"] {
        let files = found(&[(COPY, text), (CALICO, LIST)]);
        let steps: Vec<_> = unchain(&files, &of);
        assert_eq!(steps, [Step::Remove { name: COPY.into() }], "{text}");
    }
}
