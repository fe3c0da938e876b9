use std::collections::BTreeSet;

use super::*;
use crate::conflist::mode::{COPY, Mode, STANDALONE};
use crate::conflist::plan::tests::{CONF, LIST, entry, with_us};
use crate::conflist::plan::{Undo, chain, unchain};

const OTHER: &str = r#"{"name":"o","plugins":[{"type":"b"}]}"#;
const CALICO: &str = "10-calico.conflist";

fn found(files: &[(&str, &str)]) -> Vec<Found> {
    let file = |(name, text): &(&str, &str)| Found {
        name: (*name).into(),
        kind: Kind::of(name).unwrap(),
        content: Ok(Content {
            text: (*text).into(),
            access: Access::own(0o600),
            link: None,
        }),
    };
    files.iter().map(file).collect()
}

fn journal(own: &str, of: Option<&str>) -> Journal {
    let mut journal = Journal::default();
    journal.own.insert(own.into(), of.map(str::to_owned));
    journal
}

fn plan(mode: &Mode, files: &[(&str, &str)], journal: &Journal) -> Chaining {
    chain(mode, &found(files), &entry(), journal)
}

/// What is written and what goes, in short.
fn acts(plan: &Chaining) -> Vec<String> {
    let steps = plan.steps.iter().map(|step| match step {
        Step::Own { name, text, .. } => format!("{name}={text}"),
        step => format!("patch {}", step.list()),
    });
    let undo = plan.undo.iter().map(|undo| match undo {
        Undo::Drop { list } => format!("drop {list}"),
        Undo::Cut { name, .. } => format!("cut {name}"),
        Undo::Restore { origin, .. } => format!("restore {}", origin.name),
    });
    steps.chain(undo).collect()
}

#[test]
fn a_copy_is_the_first_network_with_us_in_it_and_follows_it() {
    let mode = Mode::Copy(COPY.into());
    let of = journal(COPY, Some(CALICO));
    let (copy, other) = (with_us(LIST), with_us(OTHER));
    let wrapped = with_us(&conflist::wrap(CONF).unwrap());
    for (name, files, journal, acted, ready) in [
        (
            "none yet",
            vec![(CALICO, LIST)],
            &Journal::default(),
            vec![format!("{COPY}={copy}")],
            false,
        ),
        (
            "right",
            vec![(COPY, &*copy), (CALICO, LIST)],
            &of,
            vec![],
            true,
        ),
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
        (
            "the network is gone",
            vec![(COPY, &*copy)],
            &of,
            vec![format!("drop {COPY}")],
            false,
        ),
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
            &Journal::default(),
            vec![format!("{COPY}={wrapped}")],
            false,
        ),
    ] {
        let plan = plan(&mode, &files, journal);
        assert_eq!(acts(&plan), acted, "{name}");
        assert_eq!(plan.bare.is_none(), ready, "{name}: {:?}", plan.bare);
    }
}

#[test]
fn a_copy_that_the_runtime_does_not_load_is_not_ready() {
    let mode = Mode::Copy(COPY.into());
    let first = "00-a.conflist";
    let files = [(first, LIST), (COPY, &*with_us(LIST))];
    let plan = plan(&mode, &files, &journal(COPY, Some(first)));
    let why = plan.bare.clone().unwrap();
    assert!(
        why.contains(first) && why.contains("cniConfFileName"),
        "{why}"
    );
    assert!(acts(&plan).is_empty());
}

#[test]
fn a_file_of_somebody_else_is_never_ours_to_write() {
    for mode in [Mode::Copy(CALICO.into()), Mode::Standalone(CALICO.into())] {
        for files in [
            &[(CALICO, LIST), ("20-o.conf", CONF)][..],
            &[(CALICO, LIST)],
        ] {
            let plan = plan(&mode, files, &Journal::default());
            assert!(acts(&plan).is_empty(), "{mode:?}");
            assert!(plan.bare.unwrap().contains("is not ours"), "{mode:?}");
        }
    }
}

#[test]
fn a_standalone_configuration_touches_no_other_file() {
    let mode = Mode::Standalone(STANDALONE.into());
    let text = entry().as_conf();
    let written = plan(&mode, &[(CALICO, LIST)], &Journal::default());
    assert_eq!(acts(&written), [format!("{STANDALONE}={text}")]);
    let of = journal(STANDALONE, None);
    let files = [(CALICO, LIST), (STANDALONE, &*text)];
    let right = plan(&mode, &files, &of);
    assert!(acts(&right).is_empty() && right.bare.is_none() && right.doubt.is_none());
    // Where it would be a pod's only network, somebody should know.
    let files = [(STANDALONE, &*text), ("zz.conflist", LIST)];
    let doubt = plan(&mode, &files, &of).doubt.unwrap();
    assert!(doubt.contains("no network but that"), "{doubt}");
}

#[test]
fn what_another_mode_left_goes_once_this_one_is_right() {
    let (patched, alone) = (with_us(LIST), entry().as_conf());
    let copy = Mode::Copy(COPY.into());
    let standalone = Mode::Standalone(STANDALONE.into());
    let only = Mode::Only("20-o.conflist".into());
    let none = Journal::default();
    for (name, mode, files, journal, expected) in [
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
            &journal(COPY, Some(CALICO)),
            vec![format!("cut {CALICO}")],
        ),
        (
            "back, first",
            &Mode::Every,
            vec![(COPY, &patched), (CALICO, LIST)],
            &journal(COPY, Some(CALICO)),
            vec![format!("patch {CALICO}")],
        ),
        (
            "back, then",
            &Mode::Every,
            vec![(COPY, &patched), (CALICO, &patched)],
            &journal(COPY, Some(CALICO)),
            vec![format!("drop {COPY}")],
        ),
        (
            "back, with the journal lost",
            &Mode::Every,
            vec![(COPY, &patched), (CALICO, &patched), (STANDALONE, &alone)],
            &none,
            vec![format!("drop {COPY}"), format!("drop {STANDALONE}")],
        ),
        (
            "to a standalone one",
            &standalone,
            vec![(CALICO, &patched), (STANDALONE, &alone)],
            &journal(STANDALONE, None),
            vec![format!("cut {CALICO}")],
        ),
        (
            "to one file that is not there yet",
            &only,
            vec![(CALICO, &patched)],
            &none,
            vec![],
        ),
        (
            "to one file",
            &only,
            vec![(CALICO, &patched), ("20-o.conflist", &patched)],
            &none,
            vec![format!("cut {CALICO}")],
        ),
    ] {
        assert_eq!(acts(&plan(mode, &files, journal)), expected, "{name}");
    }
}

#[test]
fn one_named_file_is_waited_for_and_then_the_only_one() {
    let mode = Mode::Only("10-net.conf".into());
    let none = Journal::default();
    let waits = plan(&mode, &[(CALICO, LIST)], &none);
    assert!(acts(&waits).is_empty());
    let why = waits.bare.unwrap();
    assert!(why.contains("10-net.conf") && why.contains(CALICO), "{why}");
    let there = plan(&mode, &[(CALICO, LIST), ("10-net.conf", CONF)], &none);
    assert_eq!(acts(&there), ["patch 10-net.conflist"]);
    let list = with_us(&conflist::wrap(CONF).unwrap());
    let files = [("00-multus.conf", CONF), ("10-net.conflist", &*list)];
    let ready = plan(&mode, &files, &none);
    assert!(acts(&ready).is_empty() && ready.bare.is_none());
    assert!(
        ready
            .doubt
            .unwrap()
            .contains("the runtime loads 00-multus.conf")
    );
}

#[test]
fn at_the_end_a_file_of_our_own_goes_whatever_is_in_it() {
    let of = journal(COPY, Some(CALICO));
    for text in [&*with_us(LIST), LIST, "{"] {
        let files = found(&[(COPY, text), (CALICO, LIST)]);
        let undo: Vec<_> = unchain(&files, &of, &BTreeSet::new());
        assert_eq!(undo, [Ok(Undo::Drop { list: COPY.into() })], "{text}");
    }
}
