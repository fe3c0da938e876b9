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
    let (none, of) = (SavedState::default(), saved(COPY, Some(CALICO)));
    let copy = with_entry(LIST);
    let write = |list: &str| format!("{COPY}={}", with_entry(list));
    let wrapped = conflist::wrap(CONF).unwrap();
    let own: (&str, &str) = (COPY, &copy);
    let (calico, other) = ((CALICO, LIST), ("20-o.conflist", OTHER));
    let unchained = vec![(COPY, LIST), calico];
    let half_written = vec![own, (CALICO, "{"), other];
    let sorts_first = vec![own, ("05-o.conflist", OTHER), calico];
    for (name, files, saved, expected) in [
        ("no copy yet", vec![calico], &none, vec![write(LIST)]),
        ("up to date", vec![own, calico], &of, vec![]),
        ("the original changed", vec![own, (CALICO, OTHER)], &of, vec![write(OTHER)]),
        ("the plugin entry was removed from the copy", unchained, &of, vec![write(LIST)]),
        ("the original is half written", half_written, &of, vec![]),
        ("another network config sorts first", sorts_first, &of, vec![write(OTHER)]),
        ("the original is missing", vec![own], &of, vec![format!("remove file {COPY}")]),
        ("another one is there instead", vec![own, other], &of, vec![write(OTHER)]),
        ("a single plugin", vec![("10-net.conf", CONF)], &none, vec![write(&wrapped)]),
    ] {
        let plan = plan(&mode, &files, saved);
        assert_eq!(summary(&plan), expected, "{name}");
        let is_ready = name == "up to date";
        assert_eq!(plan.not_chained.is_none(), is_ready, "{name}: {:?}", plan.not_chained);
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
    const RENAMED: &str = "05-x.conflist";
    let (patched, alone) = (with_entry(LIST), entry().standalone_conf());
    let chained: (&str, &str) = (CALICO, &patched);
    let copied: (&str, &str) = (COPY, &patched);
    let written_alone: (&str, &str) = (STANDALONE, &alone);
    let copy = ChainMode::Copy(COPY.into());
    let standalone = ChainMode::Standalone(STANDALONE.into());
    let only = ChainMode::Only("20-o.conflist".into());
    let every = ChainMode::Every;
    let none = SavedState::default();
    let of = saved(COPY, Some(CALICO));
    let of_standalone = saved(STANDALONE, None);
    // Sorts after the earlier copy.
    let renamed = ChainMode::Copy(RENAMED.into());
    let mut of_both = saved(RENAMED, Some(CALICO));
    of_both.own_configs.extend(of.own_configs.clone());
    let both_copies = vec![copied, (RENAMED, &patched), (CALICO, LIST)];
    let write = |name: &str| format!("{name}={patched}");
    let unchain = || format!("remove entry from {CALICO}");
    let remove = |name: &str| format!("remove file {name}");
    let both_chained = vec![chained, ("20-o.conflist", &*patched)];
    let unknown = vec![copied, chained, written_alone];
    for (name, mode, files, saved, expected) in [
        ("to a copy, first pass", &copy, vec![chained], &none, vec![write(COPY)]),
        ("to a copy, second pass", &copy, vec![copied, chained], &of, vec![unchain()]),
        ("to another copy", &renamed, vec![copied, (CALICO, LIST)], &of, vec![write(RENAMED)]),
        ("to another copy, second pass", &renamed, both_copies, &of_both, vec![remove(COPY)]),
        (
            "to every file, first pass",
            &every,
            vec![copied, (CALICO, LIST)],
            &of,
            vec![format!("add entry to {CALICO}")],
        ),
        ("to every file, second pass", &every, vec![copied, chained], &of, vec![remove(COPY)]),
        (
            "to every file, without the saved state",
            &every,
            unknown,
            &none,
            vec![remove(COPY), remove(STANDALONE)],
        ),
        (
            "to a standalone config",
            &standalone,
            vec![chained, written_alone],
            &of_standalone,
            vec![unchain()],
        ),
        ("to one file that does not exist yet", &only, vec![chained], &none, vec![]),
        ("to one file", &only, both_chained, &none, vec![unchain()]),
    ] {
        assert_eq!(summary(&plan(mode, &files, saved)), expected, "change {name}");
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
        let steps: Vec<_> = unchain(&files, &of);
        assert_eq!(steps, [Step::Remove { name: COPY.into() }], "{text}");
    }
}
