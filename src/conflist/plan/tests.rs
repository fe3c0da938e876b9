use super::*;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content, Unreadable};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry, PLUGIN};
use crate::files::FileAccess;

pub(super) const LIST: &str = r#"{"name":"n","plugins":[{"type":"a"}]}"#;
pub(super) const CONF: &str = r#"{"name":"n","type":"a"}"#;

pub(super) fn entry() -> Entry {
    Entry::new(r#"{"type":"linkerd-cni"}"#, "").unwrap()
}

pub(super) fn with_entry(list: &str) -> String {
    Conflist::parse_chainable(list).unwrap().with_entry(&entry())
}

pub(super) fn found(files: &[(&str, &str)]) -> Vec<ConfigFile> {
    let file = |(name, text): &(&str, &str)| ConfigFile {
        name: (*name).into(),
        kind: ConfigKind::of(name).unwrap(),
        content: match *text {
            "unreadable" | "elsewhere" => {
                let runtime_may_read = *text == "elsewhere";
                Err(Unreadable { why: "is here".into(), runtime_may_read })
            }
            text => Ok(Content { text: text.into(), access: FileAccess::own(0o600), link: None }),
        },
    };
    files.iter().map(file).collect()
}

/// Describes a step in a few words, and with the text of a file that only the agent writes.
pub(super) fn describe(step: &Step) -> String {
    match step {
        Step::Replace { name, text, .. } if text.contains(PLUGIN) => format!("add entry to {name}"),
        Step::Replace { name, .. } => format!("remove entry from {name}"),
        Step::Convert { conflist, original, .. } => {
            format!("convert {} to {conflist}", original.name)
        }
        Step::WriteOwnConfig { name, text, .. } => format!("{name}={text}"),
        Step::Restore { original, .. } => format!("restore {}", original.name),
        Step::Remove { name } => format!("remove file {name}"),
    }
}

#[test]
fn no_mode_is_chained_behind_a_file_that_only_the_runtime_can_read() {
    let (list, none) = (with_entry(LIST), SavedState::default());
    let why = |mode: &ChainMode, files: &[(&str, &str)]| {
        chain(mode, &found(files), &entry(), &none).not_chained
    };
    for mode in [ChainMode::Every, ChainMode::Only("10-a.conflist".into())] {
        let first = |text| why(&mode, &[("05-x.conf", text), ("10-a.conflist", &list)]);
        let said = first("elsewhere").unwrap();
        assert!(said.contains("05-x.conf") && said.contains("is here"), "{said}");
        assert_eq!((first("unreadable"), first("{")), (None, None));
        let behind = [("10-a.conflist", &*list), ("20-x.conf", "elsewhere")];
        assert_eq!(why(&mode, &behind), None);
    }
}

/// A copy of the second network config would give pods another network.
#[test]
fn a_copy_is_neither_made_nor_changed_while_only_the_runtime_can_read_its_source() {
    let mode = ChainMode::Copy("00-copy.conflist".into());
    let mut saved = SavedState::default();
    saved.own_configs.insert("00-copy.conflist".into(), Some("05-x.conf".into()));
    let copy = with_entry(LIST);
    for files in [
        &[("05-x.conf", "elsewhere"), ("10-a.conflist", LIST)][..],
        &[("00-copy.conflist", &copy), ("05-x.conf", "elsewhere"), ("10-a.conflist", LIST)],
    ] {
        let plan = chain(&mode, &found(files), &entry(), &saved);
        assert!(plan.steps.is_empty() && plan.unchain_steps.is_empty(), "{plan:?}");
        assert!(plan.not_chained.unwrap().contains("replace 05-x.conf"));
    }
}

/// Saved state of a conflist `list` that was made from `conf` with the text `CONF`.
fn saved(list: &str, conf: &str) -> SavedState {
    let content = Content { text: CONF.into(), access: FileAccess::own(0o600), link: None };
    let original = Original::new(conf, &content, conflist::wrap(CONF).unwrap());
    let mut saved = SavedState::default();
    saved.originals.insert(list.into(), original);
    saved
}

/// Returns the names of the files to write.
fn writes(files: &[(&str, &str)], saved: &SavedState) -> Vec<String> {
    let plan = chain(&ChainMode::Every, &found(files), &entry(), saved);
    plan.steps.iter().map(|step| step.target().into()).collect()
}

#[test]
fn every_conflist_and_conf_is_written_but_a_json_only_if_it_is_active() {
    let none = SavedState::default();
    let lists = [("10-a.conflist", LIST), ("20-b.conf", CONF), ("30-c.json", CONF)];
    assert_eq!(writes(&lists, &none), ["10-a.conflist", "20-b.conflist"]);
    assert_eq!(writes(&lists[2..], &none), ["30-c.conflist"]);
    let behind_bad = [("00-x.conf", "unreadable"), ("10-y.conf", "{"), lists[2]];
    assert_eq!(writes(&behind_bad, &none), ["30-c.conflist"]);
    let chained = with_entry(LIST);
    assert!(writes(&[("10-a.conflist", &chained), lists[2]], &none).is_empty());
}

#[test]
fn the_active_network_config_decides_readiness() {
    let chained = with_entry(LIST);
    let outdated = chained.replace("linkerd-cni\"", "linkerd-cni\",\"old\":1");
    for (files, expected) in [
        (vec![], Some("no network config exists yet")),
        (vec![("1.conflist", "{")], Some("no valid network config")),
        (vec![("1.conflist", &*chained)], None),
        (vec![("0.conflist", "{"), ("1.conflist", &chained)], None),
        (vec![("0.conf", CONF), ("1.conflist", &chained)], Some("active network config 0.conf")),
        (vec![("0.json", CONF), ("1.conflist", &chained)], Some("active network config 0.json")),
        (vec![("1.conflist", &chained), ("2.conflist", LIST)], None),
        (
            vec![("0.conflist", LIST), ("1.conflist", &chained)],
            Some("the active network config 0.conflist has no plugin entry"),
        ),
        (vec![("0.conflist", &outdated)], Some("0.conflist has an outdated plugin entry")),
    ] {
        let plan = chain(&ChainMode::Every, &found(&files), &entry(), &SavedState::default());
        match (plan.not_chained, expected) {
            (None, None) => {}
            (Some(why), Some(part)) => assert!(why.contains(part), "{why}"),
            (why, expected) => panic!("{files:?}: {why:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_conflist_beside_a_conf_is_overwritten_only_if_the_agent_made_it_and_it_is_unchanged() {
    let made = with_entry(&conflist::wrap(CONF).unwrap());
    let changed = made.replace("\"n\"", "\"other\"");
    let known = saved("x.conflist", "x.conf");
    for (name, list, saved, expected) in [
        ("made by the agent", &*made, &known, vec!["convert x.conf to x.conflist"]),
        ("changed since", &changed, &known, vec!["convert x.conf to x.conf.conflist"]),
        ("not recorded", &made, &SavedState::default(), vec!["convert x.conf to x.conf.conflist"]),
        (
            "foreign",
            LIST,
            &known,
            vec!["convert x.conf to x.conf.conflist", "add entry to x.conflist"],
        ),
        ("unreadable", "unreadable", &known, vec!["convert x.conf to x.conf.conflist"]),
    ] {
        let files = found(&[("x.conf", CONF), ("x.conflist", list)]);
        let plan = chain(&ChainMode::Every, &files, &entry(), saved);
        let steps: Vec<String> = plan.steps.iter().map(describe).collect();
        assert_eq!(steps, expected, "{name}");
        assert!(!plan.skipped.contains_key("x.conf"), "{name}");
    }
}

#[test]
fn a_conf_whose_conflist_names_are_both_used_is_named_and_left_unchanged() {
    let files = [("x.conf", CONF), ("x.conf.conflist", LIST), ("x.conflist", LIST)];
    let plan = chain(&ChainMode::Every, &found(&files), &entry(), &SavedState::default());
    let why = plan.not_chained.unwrap();
    assert!(
        why.contains("x.conf ") && why.contains("x.conflist and x.conf.conflist already exist and"),
        "{why}"
    );
    assert_eq!(plan.skipped.len(), 1);
}

#[test]
fn a_conf_that_runtimes_skip_does_not_become_active_beside_a_conflist() {
    // A `.conf` that holds a conflist has no `type`.
    let files = [("x.conf", LIST), ("x.conflist", LIST)];
    assert_eq!(writes(&files, &SavedState::default()), ["x.conflist"]);
    assert_eq!(writes(&files[..1], &SavedState::default()), ["x.conflist"]);
}

#[test]
fn a_conf_that_is_written_again_replaces_the_conflist_that_was_made_from_it() {
    let made = with_entry(&conflist::wrap(CONF).unwrap());
    let mut known = saved("x.conf.conflist", "x.conf");
    // The agent made `x.conflist` too, before the other one.
    known.originals.extend(saved("x.conflist", "x.conf").originals);
    for others in [&[("x.conflist", &*made)][..], &[]] {
        let files = [&[("x.conf", CONF), ("x.conf.conflist", &made)], others].concat();
        assert_eq!(writes(&files, &known), ["x.conf.conflist"]);
    }
}

#[test]
fn a_named_conf_beside_a_conflist_is_chained_and_stays_chained() {
    let mode = ChainMode::Only("x.conf".into());
    let made = with_entry(&conflist::wrap(CONF).unwrap());
    let known = saved("x.conf.conflist", "x.conf");
    let before = found(&[("x.conf", CONF), ("x.conflist", LIST)]);
    let plan = chain(&mode, &before, &entry(), &SavedState::default());
    assert_eq!(plan.steps[0].target(), "x.conf.conflist");
    let after = found(&[("x.conf.conflist", &made), ("x.conflist", &with_entry(LIST))]);
    let plan = chain(&mode, &after, &entry(), &known);
    assert!(plan.steps.is_empty() && plan.unchain_steps.is_empty());
    assert_eq!((plan.not_chained, plan.warning), (None, None));
    assert!(chained(&mode, &after[..1]).is_some());
}

#[test]
fn unchaining_a_conflist_that_the_agent_made_restores_the_original_file() {
    let made = with_entry(&conflist::wrap(CONF).unwrap());
    let changed = made.replace("\"n\"", "\"other\"");
    let known = saved("x.conflist", "x.conf");
    let steps = |files: &[(&str, &str)]| -> Vec<String> {
        unchain(&found(files), &known).iter().map(describe).collect()
    };
    assert_eq!(steps(&[("x.conflist", &made)]), ["restore x.conf"]);
    assert_eq!(steps(&[("x.conf", CONF), ("x.conflist", &made)]), ["remove file x.conflist"]);
    assert_eq!(steps(&[("x.conflist", &changed)]), ["remove entry from x.conflist"]);
    assert_eq!(steps(&[("y.conflist", &with_entry(LIST))]), ["remove entry from y.conflist"]);
    assert!(steps(&[("y.conflist", LIST), ("z.conf", CONF)]).is_empty());
}

#[test]
fn the_node_is_chained_if_the_network_config_of_this_mode_has_the_plugin_entry() {
    let with_entry = with_entry(LIST);
    let files: [(&str, &str); 3] =
        [("05-broken.conflist", "{"), ("10-a.conflist", LIST), ("20-b.conflist", &with_entry)];
    let chained =
        |mode: &ChainMode, files: &[(&str, &str)]| super::chained(mode, &found(files)).is_some();
    // The runtime loads 10-a.
    assert!(!chained(&ChainMode::Every, &files));
    assert!(chained(&ChainMode::Every, &files[2..]));
    assert!(!chained(&ChainMode::Only("10-a.conflist".into()), &files));
    // Another plugin calls 20-b, which may have been a `.conf`.
    assert!(chained(&ChainMode::Only("20-b.conflist".into()), &files));
    assert!(chained(&ChainMode::Only("20-b.conf".into()), &files));
    let alone = [("linkerd-cni.conf", r#"{"type":"linkerd-cni"}"#)];
    let standalone = ChainMode::Standalone("linkerd-cni.conf".into());
    assert!(chained(&standalone, &alone));
    // Another plugin calls the file, so the others do not matter.
    assert!(chained(&standalone, &[files[1], alone[0]]));
    assert!(!chained(&standalone, &files[2..]));
    assert!(!chained(&ChainMode::Every, &[]));
}
