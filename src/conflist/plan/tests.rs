use super::*;
use crate::conflist::saved_state;
use crate::files::Access;

pub(super) const LIST: &str = r#"{"name":"n","plugins":[{"type":"a"}]}"#;
pub(super) const CONF: &str = r#"{"name":"n","type":"a"}"#;

pub(super) fn entry() -> Entry {
    Entry::new(r#"{"type":"linkerd-cni"}"#, "").unwrap()
}

pub(super) fn with_us(list: &str) -> String {
    List::parse(list).unwrap().with(&entry())
}

fn found(files: &[(&str, &str)]) -> Vec<Found> {
    let file = |(name, text): &(&str, &str)| Found {
        name: (*name).into(),
        kind: Kind::of(name).unwrap(),
        content: match *text {
            "unreadable" => Err("is a directory".into()),
            text => Ok(Content {
                text: text.into(),
                access: Access::own(0o644),
                link: None,
            }),
        },
    };
    files.iter().map(file).collect()
}

/// A journal that says `list` was made from `conf` with the text `CONF`.
fn journal(list: &str, conf: &str) -> Journal {
    let origin = Origin {
        bare: conflist::wrap(CONF).unwrap(),
        was: None,
        name: conf.into(),
        content: saved_state::Content::Text(CONF.into()),
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    let mut journal = Journal::default();
    journal.lists.insert(list.into(), origin);
    journal
}

/// The names that are written, in short.
fn writes(files: &[(&str, &str)], journal: &Journal) -> Vec<String> {
    let plan = chain(&Mode::Every, &found(files), &entry(), journal);
    plan.steps.iter().map(|step| step.list().into()).collect()
}

#[test]
fn every_list_and_conf_is_written_but_a_json_only_where_it_is_loaded() {
    let none = Journal::default();
    let lists = [
        ("10-a.conflist", LIST),
        ("20-b.conf", CONF),
        ("30-c.json", CONF),
    ];
    assert_eq!(writes(&lists, &none), ["10-a.conflist", "20-b.conflist"]);
    assert_eq!(writes(&lists[2..], &none), ["30-c.conflist"]);
    let behind_bad = [("00-x.conf", "unreadable"), ("10-y.conf", "{"), lists[2]];
    assert_eq!(writes(&behind_bad, &none), ["30-c.conflist"]);
    let chained = with_us(LIST);
    assert!(writes(&[("10-a.conflist", &chained), lists[2]], &none).is_empty());
}

#[test]
fn the_file_that_is_loaded_first_decides_what_is_ready() {
    let chained = with_us(LIST);
    for (files, expected) in [
        (vec![], Some("no network configuration yet")),
        (vec![("1.conflist", "{")], Some("no valid network")),
        (vec![("1.conflist", &*chained)], None),
        (vec![("0.conflist", "{"), ("1.conflist", &chained)], None),
        (
            vec![("0.conf", CONF), ("1.conflist", &chained)],
            Some("loads 0.conf"),
        ),
        (
            vec![("0.json", CONF), ("1.conflist", &chained)],
            Some("loads 0.json"),
        ),
        (vec![("1.conflist", &chained), ("2.conflist", LIST)], None),
        (
            vec![("0.conflist", LIST), ("1.conflist", &chained)],
            Some("loads 0.conflist"),
        ),
    ] {
        let bare = chain(&Mode::Every, &found(&files), &entry(), &Journal::default()).bare;
        match (bare, expected) {
            (None, None) => {}
            (Some(why), Some(part)) => assert!(why.contains(part), "{why}"),
            (bare, expected) => panic!("{files:?}: {bare:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_list_beside_a_conf_is_only_overwritten_if_we_made_it_and_nobody_wrote_it_since() {
    let made = with_us(&conflist::wrap(CONF).unwrap());
    let changed = made.replace("\"n\"", "\"other\"");
    let known = journal("x.conflist", "x.conf");
    for (name, list, journal, expected) in [
        ("ours", &*made, &known, vec!["x.conflist"]),
        ("changed since", &changed, &known, vec![]),
        ("not recorded", &made, &Journal::default(), vec![]),
        ("foreign", LIST, &known, vec!["x.conflist (patched)"]),
        ("unreadable", "unreadable", &known, vec![]),
    ] {
        let files = found(&[("x.conf", CONF), ("x.conflist", list)]);
        let plan = chain(&Mode::Every, &files, &entry(), journal);
        let steps = plan.steps.iter().map(|step| match step {
            Step::Patch { name, .. } => format!("{name} (patched)"),
            Step::Convert { list, .. } => list.clone(),
            Step::Own { name, .. } => format!("{name} (ours)"),
        });
        assert_eq!(steps.collect::<Vec<_>>(), expected, "{name}");
        let left = plan.skipped.contains_key("x.conf");
        assert_eq!(left, name != "ours", "{name}");
    }
}

#[test]
fn a_made_list_is_undone_to_what_it_was_made_from() {
    let made = with_us(&conflist::wrap(CONF).unwrap());
    let changed = made.replace("\"n\"", "\"other\"");
    let known = journal("x.conflist", "x.conf");
    let ours = BTreeSet::new();
    let kind = |files: &[(&str, &str)]| {
        let steps = unchain(&found(files), &known, &ours);
        let kinds = steps.iter().map(|step| match step {
            Ok(Undo::Cut { .. }) => "cut",
            Ok(Undo::Restore { .. }) => "restore",
            Ok(Undo::Drop { .. }) => "drop",
            Err(_) => "error",
        });
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(kind(&[("x.conflist", &made)]), ["restore"]);
    assert_eq!(kind(&[("x.conf", CONF), ("x.conflist", &made)]), ["drop"]);
    assert_eq!(kind(&[("x.conflist", &changed)]), ["cut"]);
    assert_eq!(kind(&[("y.conflist", &with_us(LIST))]), ["cut"]);
    assert!(kind(&[("y.conflist", LIST), ("z.conf", CONF)]).is_empty());
}

#[test]
fn a_list_that_cannot_be_read_any_more_is_an_error_only_if_it_carried_us() {
    let files = found(&[("a.conflist", "{"), ("b.conflist", "unreadable")]);
    assert!(unchain(&files, &Journal::default(), &BTreeSet::new()).is_empty());
    let ours = BTreeSet::from(["a.conflist".to_owned()]);
    let errors = unchain(&files, &Journal::default(), &ours);
    assert_eq!(
        errors,
        [Err("a.conflist is not JSON (line 1, column 1)".into())]
    );
}

#[test]
fn the_node_is_chained_if_the_config_that_carries_the_entry_in_this_mode_has_one() {
    let with_us = with_us(LIST);
    let files: [(&str, &str); 3] = [
        ("05-broken.conflist", "{"),
        ("10-a.conflist", LIST),
        ("20-b.conflist", &with_us),
    ];
    let chained = |mode: &Mode, files: &[(&str, &str)]| is_chained(mode, &found(files));
    // The runtime loads 10-a.
    assert!(!chained(&Mode::Every, &files));
    assert!(chained(&Mode::Every, &files[2..]));
    assert!(!chained(&Mode::Only("10-a.conflist".into()), &files));
    // Another plugin calls 20-b; from a `.conf` it was made a list.
    assert!(chained(&Mode::Only("20-b.conflist".into()), &files));
    assert!(chained(&Mode::Only("20-b.conf".into()), &files));
    let alone = [("linkerd-cni.conf", r#"{"type":"linkerd-cni"}"#)];
    assert!(chained(
        &Mode::Standalone("linkerd-cni.conf".into()),
        &alone
    ));
    assert!(!chained(&Mode::Every, &[]));
}
