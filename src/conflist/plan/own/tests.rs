use std::collections::BTreeSet;

use super::*;
use crate::conflist::mode::{COPY, ChainMode, STANDALONE};
use crate::conflist::plan::tests::{CONF, LIST, entry, with_entry};
use crate::conflist::plan::{UnchainStep, chain, unchain};

const OTHER: &str = r#"{"name":"o","plugins":[{"type":"b"}]}"#;
const CALICO: &str = "10-calico.conflist";

fn found(files: &[(&str, &str)]) -> Vec<ConfigFile> {
    let file = |(name, text): &(&str, &str)| ConfigFile {
        name: (*name).into(),
        kind: ConfigKind::of(name).unwrap(),
        content: Ok(Content { text: (*text).into(), access: Access::own(0o600), link: None }),
    };
    files.iter().map(file).collect()
}

fn saved(own: &str, of: Option<&str>) -> SavedState {
    let mut saved = SavedState::default();
    saved.own.insert(own.into(), of.map(str::to_owned));
    saved
}

fn plan(mode: &ChainMode, files: &[(&str, &str)], saved: &SavedState) -> Chaining {
    chain(mode, &found(files), &entry(), saved)
}

/// Summarises the steps and removals of a plan.
fn acts(plan: &Chaining) -> Vec<String> {
    let steps = plan.steps.iter().map(|step| match step {
        Step::Own { name, text, .. } => format!("{name}={text}"),
        step => format!("patch {}", step.list()),
    });
    let undo = plan.undo.iter().map(|undo| match undo {
        UnchainStep::Drop { list } => format!("drop {list}"),
        UnchainStep::Cut { name, .. } => format!("cut {name}"),
        UnchainStep::Restore { origin, .. } => format!("restore {}", origin.name),
    });
    steps.chain(undo).collect()
}

#[test]
fn a_copy_is_the_active_network_config_with_the_plugin_entry_and_follows_it() {
    let mode = ChainMode::Copy(COPY.into());
    let of = saved(COPY, Some(CALICO));
    let (copy, other) = (with_entry(LIST), with_entry(OTHER));
    let wrapped = with_entry(&conflist::wrap(CONF).unwrap());
    for (name, files, saved, acted, ready) in [
        (
            "none yet",
            vec![(CALICO, LIST)],
            &SavedState::default(),
            vec![format!("{COPY}={copy}")],
            false,
        ),
        ("right", vec![(COPY, &*copy), (CALICO, LIST)], &of, vec![], true),
        (
            "the network changed",
            vec![(COPY, &*copy), (CALICO, OTHER)],
            &of,
            vec![format!("{COPY}={other}")],
            false,
        ),
        (
            "somebody took us out of the copy",
            vec![(COPY, LIST), (CALICO, LIST)],
            &of,
            vec![format!("{COPY}={copy}")],
            false,
        ),
        (
            "the network is being written",
            vec![(COPY, &*copy), (CALICO, "{"), ("20-o.conflist", OTHER)],
            &of,
            vec![],
            false,
        ),
        (
            "another comes first",
            vec![(COPY, &*copy), ("05-o.conflist", OTHER), (CALICO, LIST)],
            &of,
            vec![format!("{COPY}={other}")],
            false,
        ),
        ("the network is gone", vec![(COPY, &*copy)], &of, vec![format!("drop {COPY}")], false),
        (
            "the network is gone and another is there",
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
        assert_eq!(acts(&plan), acted, "{name}");
        assert_eq!(plan.unchained.is_none(), ready, "{name}: {:?}", plan.unchained);
    }
}

#[test]
fn a_copy_that_is_not_active_is_not_ready() {
    let mode = ChainMode::Copy(COPY.into());
    let first = "00-a.conflist";
    let files = [(first, LIST), (COPY, &*with_entry(LIST))];
    let plan = plan(&mode, &files, &saved(COPY, Some(first)));
    let why = plan.unchained.clone().unwrap();
    assert!(why.contains(first) && why.contains("cniConfFileName"), "{why}");
    assert!(acts(&plan).is_empty());
}

#[test]
fn a_file_of_another_program_is_never_written() {
    for mode in [ChainMode::Copy(CALICO.into()), ChainMode::Standalone(CALICO.into())] {
        for files in [&[(CALICO, LIST), ("20-o.conf", CONF)][..], &[(CALICO, LIST)]] {
            let plan = plan(&mode, files, &SavedState::default());
            assert!(acts(&plan).is_empty(), "{mode:?}");
            assert!(plan.unchained.unwrap().contains("is not ours"), "{mode:?}");
        }
    }
}

#[test]
fn a_standalone_config_changes_no_other_file() {
    let mode = ChainMode::Standalone(STANDALONE.into());
    let text = entry().as_conf();
    let written = plan(&mode, &[(CALICO, LIST)], &SavedState::default());
    assert_eq!(acts(&written), [format!("{STANDALONE}={text}")]);
    let of = saved(STANDALONE, None);
    let files = [(CALICO, LIST), (STANDALONE, &*text)];
    let right = plan(&mode, &files, &of);
    assert!(acts(&right).is_empty() && right.unchained.is_none() && right.doubt.is_none());
    // An active standalone config would leave pods without a network.
    let files = [(STANDALONE, &*text), ("zz.conflist", LIST)];
    let doubt = plan(&mode, &files, &of).doubt.unwrap();
    assert!(doubt.contains("no network but that"), "{doubt}");
}

#[test]
fn files_of_another_mode_are_removed_once_the_file_of_this_mode_is_correct() {
    let (patched, alone) = (with_entry(LIST), entry().as_conf());
    let copy = ChainMode::Copy(COPY.into());
    let standalone = ChainMode::Standalone(STANDALONE.into());
    let only = ChainMode::Only("20-o.conflist".into());
    let none = SavedState::default();
    for (name, mode, files, saved, expected) in [
        (
            "to a copy, first",
            &copy,
            vec![(CALICO, &*patched)],
            &none,
            vec![format!("{COPY}={patched}")],
        ),
        (
            "to a copy, then",
            &copy,
            vec![(COPY, &*patched), (CALICO, &patched)],
            &saved(COPY, Some(CALICO)),
            vec![format!("cut {CALICO}")],
        ),
        (
            "back, first",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, LIST)],
            &saved(COPY, Some(CALICO)),
            vec![format!("patch {CALICO}")],
        ),
        (
            "back, then",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, &patched)],
            &saved(COPY, Some(CALICO)),
            vec![format!("drop {COPY}")],
        ),
        (
            "back, with the journal lost",
            &ChainMode::Every,
            vec![(COPY, &patched), (CALICO, &patched), (STANDALONE, &alone)],
            &none,
            vec![format!("drop {COPY}"), format!("drop {STANDALONE}")],
        ),
        (
            "to a standalone one",
            &standalone,
            vec![(CALICO, &patched), (STANDALONE, &alone)],
            &saved(STANDALONE, None),
            vec![format!("cut {CALICO}")],
        ),
        ("to one file that is not there yet", &only, vec![(CALICO, &patched)], &none, vec![]),
        (
            "to one file",
            &only,
            vec![(CALICO, &patched), ("20-o.conflist", &patched)],
            &none,
            vec![format!("cut {CALICO}")],
        ),
    ] {
        assert_eq!(acts(&plan(mode, &files, saved)), expected, "{name}");
    }
}

#[test]
fn a_named_file_is_waited_for_and_then_the_only_one_written() {
    let mode = ChainMode::Only("10-net.conf".into());
    let none = SavedState::default();
    let waits = plan(&mode, &[(CALICO, LIST)], &none);
    assert!(acts(&waits).is_empty());
    let why = waits.unchained.unwrap();
    assert!(why.contains("10-net.conf") && why.contains(CALICO), "{why}");
    let there = plan(&mode, &[(CALICO, LIST), ("10-net.conf", CONF)], &none);
    assert_eq!(acts(&there), ["patch 10-net.conflist"]);
    let list = with_entry(&conflist::wrap(CONF).unwrap());
    let files = [("00-multus.conf", CONF), ("10-net.conflist", &*list)];
    let ready = plan(&mode, &files, &none);
    assert!(acts(&ready).is_empty() && ready.unchained.is_none());
    assert!(ready.doubt.unwrap().contains("the runtime loads 00-multus.conf"));
}

#[test]
fn uninstall_removes_a_file_that_only_the_agent_writes_whatever_its_content() {
    let of = saved(COPY, Some(CALICO));
    for text in [&*with_entry(LIST), LIST, "{"] {
        let files = found(&[(COPY, text), (CALICO, LIST)]);
        let undo: Vec<_> = unchain(&files, &of, &BTreeSet::new());
        assert_eq!(undo, [Ok(UnchainStep::Drop { list: COPY.into() })], "{text}");
    }
}
