use std::collections::BTreeSet;

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

#[test]
fn a_copy_is_the_active_network_config_with_the_plugin_entry_and_follows_it() {
    let mode = ChainMode::Copy(COPY.into());
    let of = saved(COPY, Some(CALICO));
    let (copy, other) = (with_entry(LIST), with_entry(OTHER));
    let wrapped = with_entry(&conflist::wrap(CONF).unwrap());
    for (name, files, saved, expected, ready) in [
        (
            "no copy yet",
            vec![(CALICO, LIST)],
            &SavedState::default(),
            vec![format!("{COPY}={copy}")],
            false,
        ),
        ("up to date", vec![(COPY, &*copy), (CALICO, LIST)], &of, vec![], true),
        (
            "the original changed",
            vec![(COPY, &*copy), (CALICO, OTHER)],
            &of,
            vec![format!("{COPY}={other}")],
            false,
        ),
        (
            "the plugin entry was removed from the copy",
            vec![(COPY, LIST), (CALICO, LIST)],
            &of,
            vec![format!("{COPY}={copy}")],
            false,
        ),
        (
            "the original is half written",
            vec![(COPY, &*copy), (CALICO, "{"), ("20-o.conflist", OTHER)],
            &of,
            vec![],
            false,
        ),
        (
            "another network config sorts first",
            vec![(COPY, &*copy), ("05-o.conflist", OTHER), (CALICO, LIST)],
            &of,
            vec![format!("{COPY}={other}")],
            false,
        ),
        (
            "the original is missing",
            vec![(COPY, &*copy)],
            &of,
            vec![format!("remove file {COPY}")],
            false,
        ),
        (
            "the original is missing and another network config exists",
            vec![(COPY, &*copy), ("20-o.conflist", OTHER)],
            &of,
            vec![format!("{COPY}={other}")],
            false,
        ),
        (
            "a single plugin",
            vec![("10-net.conf", CONF)],
            &SavedState::default(),
            vec![format!("{COPY}={wrapped}")],
            false,
        ),
    ] {
        let plan = plan(&mode, &files, saved);
        assert_eq!(summary(&plan), expected, "{name}");
        assert_eq!(plan.not_chained.is_none(), ready, "{name}: {:?}", plan.not_chained);
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
fn files_of_another_mode_are_removed_once_the_file_of_this_mode_is_correct() {
    let (patched, alone) = (with_entry(LIST), entry().standalone_conf());
    let copy = ChainMode::Copy(COPY.into());
    let standalone = ChainMode::Standalone(STANDALONE.into());
    let only = ChainMode::Only("20-o.conflist".into());
    let none = SavedState::default();
    // Sorts after the earlier copy.
    let renamed = ChainMode::Copy("05-x.conflist".into());
    let mut renamed_state = saved("05-x.conflist", Some(CALICO));
    renamed_state.own_configs.extend(saved(COPY, Some(CALICO)).own_configs);
    for (name, mode, files, saved, expected) in [
        (
            "change to a copy, first pass",
            &copy,
            vec![(CALICO, &*patched)],
            &none,
            vec![format!("{COPY}={patched}")],
        ),
        (
            "change to a copy, second pass",
            &copy,
            vec![(COPY, &*patched), (CALICO, &patched)],
            &saved(COPY, Some(CALICO)),
            vec![format!("remove entry from {CALICO}")],
        ),
        (
            "change to a copy of another name, first pass",
            &renamed,
            vec![(COPY, &patched), (CALICO, LIST)],
            &saved(COPY, Some(CALICO)),
            vec![format!("05-x.conflist={patched}")],
        ),
        (
            "change to a copy of another name, second pass",
            &renamed,
            vec![(COPY, &patched), ("05-x.conflist", &patched), (CALICO, LIST)],
            &renamed_state,
            vec![format!("remove file {COPY}")],
        ),
        (
            "change to every file, first pass",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, LIST)],
            &saved(COPY, Some(CALICO)),
            vec![format!("add entry to {CALICO}")],
        ),
        (
            "change to every file, second pass",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, &patched)],
            &saved(COPY, Some(CALICO)),
            vec![format!("remove file {COPY}")],
        ),
        (
            "change to every file, without the saved state",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, &patched), (STANDALONE, &alone)],
            &none,
            vec![format!("remove file {COPY}"), format!("remove file {STANDALONE}")],
        ),
        (
            "change to a standalone config",
            &standalone,
            vec![(CALICO, &patched), (STANDALONE, &alone)],
            &saved(STANDALONE, None),
            vec![format!("remove entry from {CALICO}")],
        ),
        (
            "change to one file that does not exist yet",
            &only,
            vec![(CALICO, &patched)],
            &none,
            vec![],
        ),
        (
            "change to one file",
            &only,
            vec![(CALICO, &patched), ("20-o.conflist", &patched)],
            &none,
            vec![format!("remove entry from {CALICO}")],
        ),
    ] {
        assert_eq!(summary(&plan(mode, &files, saved)), expected, "{name}");
    }
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
        let steps: Vec<_> = unchain(&files, &of, &BTreeSet::new());
        assert_eq!(steps, [Ok(Step::Remove { name: COPY.into() })], "{text}");
    }
}
