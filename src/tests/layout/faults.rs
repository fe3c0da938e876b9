//! The error texts of `docs/troubleshooting.md`: each stands once, has a cause and a remedy, and is
//! printed by a program. Its table of codes is that of `failure::TABLE`, which this test writes
//! with `UPDATE_DOCS=1`. `docs/maintainers/faults.md` has how each fault is caused and what is
//! shown of it. The tests that compare these texts are in the suites `agent` and `cluster`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use linkerd2_cni::failure;

const PAGE: &str = "troubleshooting.md";

/// Texts that no test captures: of Helm, the scheduler, the kubelet, other plugins and policy
/// engines, or of faults that these tests cannot cause. After ` | `, a message with the text as
/// users paste it.
const NOT_CAPTURED: &str = include_str!("not_captured.txt");

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn page() -> String {
    fs::read_to_string(docs().join(PAGE)).unwrap()
}

/// A line of the page: error texts with one cause and remedy.
struct Entry<'a> {
    heading: &'a str,
    texts: Vec<&'a str>,
    remedy: &'a str,
}

impl Entry<'_> {
    /// The anchor of the heading above.
    fn anchor(&self) -> String {
        self.heading.to_lowercase().replace(' ', "-").replace(',', "")
    }

    fn all(page: &str) -> Vec<Entry<'_>> {
        let mut heading = "";
        let mut entries = Vec::new();
        for line in page.lines() {
            if line.starts_with('#') {
                heading = line.trim_start_matches('#').trim();
            }
            let Some(rest) = line.strip_prefix("- `") else { continue };
            let parts = rest.split_once("`: ");
            let (texts, remedy) = parts.unwrap_or_else(|| panic!("no remedy: {line}"));
            entries.push(Entry { heading, texts: texts.split("`, `").collect(), remedy });
        }
        entries
    }
}

/// A section of `docs/maintainers/faults.md`: how to cause the fault, and the captured texts.
struct FaultSection {
    name: String,
    text: String,
}

impl FaultSection {
    fn all() -> Vec<FaultSection> {
        let sections = fs::read_to_string(docs().join("maintainers/faults.md")).unwrap();
        // The captured texts have no headings.
        let sections = sections.split("\n## ").skip(1).map(|section| {
            let (name, text) = section.split_once('\n').unwrap();
            FaultSection { name: name.to_owned(), text: text.to_owned() }
        });
        sections.collect()
    }

    /// The heading of `PAGE` with the remedy, as an anchor.
    fn anchor(&self) -> &str {
        let link = self.text.split_once(&format!("(../{PAGE}#"));
        let (_, rest) = link.unwrap_or_else(|| panic!("{}: no link to its remedy", self.name));
        rest.split(')').next().unwrap_or_default()
    }

    /// The captured texts, each with the line that introduces it.
    fn captured(&self) -> Vec<(&str, &str)> {
        let blocks = self.text.split("\n```text\n").collect::<Vec<_>>();
        let pairs = blocks.windows(2).map(|pair| {
            let heading = pair[0].trim().lines().last().unwrap_or_default();
            (heading, pair[1].split("```").next().unwrap_or_default())
        });
        pairs.collect()
    }
}

#[test]
fn each_error_text_stands_once_and_has_a_cause_and_a_remedy() {
    let page = page();
    let mut seen = BTreeSet::new();
    for Entry { texts, remedy, .. } in Entry::all(&page) {
        for text in &texts {
            assert!(text.len() > 7 && !text.contains('`'), "{text}");
            assert!(seen.insert(*text), "{text} stands twice");
        }
        assert!(!remedy.is_empty(), "{texts:?} has no remedy");
    }
    assert!(seen.len() > 100, "{} texts", seen.len());
}

#[test]
fn each_error_text_was_captured_or_leads_to_its_remedy() {
    let (page, faults) = (page(), FaultSection::all());
    let entries = Entry::all(&page);
    let mut texts = Vec::new();
    for entry in &entries {
        texts.extend(entry.texts.iter().map(|text| (*text, entry)));
    }
    let captured = |text: &str| {
        faults.iter().flat_map(FaultSection::captured).any(|(_, block)| block.contains(text))
    };
    let lost = texts.iter().map(|(text, _)| *text).filter(|text| !captured(text));
    let mut lost: BTreeSet<&str> = lost.collect();
    for line in NOT_CAPTURED.lines() {
        let (text, pasted) = line.split_once(" | ").unwrap_or((line, line));
        // The longest text of the page that the message has.
        let found = texts.iter().filter(|(other, _)| pasted.contains(*other));
        let (_, entry) = found.max_by_key(|(other, _)| other.len()).expect(pasted);
        assert!(entry.texts.contains(&text), "{pasted} leads to {:?}", entry.texts);
        assert!(lost.remove(text), "{text} stands twice, or is captured");
    }
    assert!(lost.is_empty(), "no captured text has {lost:#?}");
}

#[test]
fn each_fault_has_a_cause_and_a_test() {
    let of_tests = |path: &str| super::source().join("tests").join(path);
    let mut tests = fs::read_to_string(of_tests("cluster/catalogue.rs")).unwrap();
    let entries = fs::read_dir(of_tests("agent/catalogue")).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        tests += &fs::read_to_string(path).unwrap();
    }
    let faults = FaultSection::all();
    assert!(faults.len() > 45, "{} faults", faults.len());
    for FaultSection { name, text } in faults {
        let cause = text.split("<!-- captured: ").next().unwrap_or_default();
        assert!(!cause.trim().is_empty(), "{name}: no word on how to cause it");
        assert!(tests.contains(&format!("\"{name}\"")), "no test causes {name}");
    }
}

const TABLE_HEAD: &str = "| code | cause | remedy |\n| --- | --- | --- |\n";

/// The rows of the page's table of error codes. A remedy that an entry of the page explains is a
/// link.
fn error_codes(page: &str) -> String {
    let entries = Entry::all(page);
    let row = |row: &failure::Row| {
        let explains = |entry: &&Entry<'_>| {
            entry.texts.iter().any(|text| row.cause == *text || row.remedy.starts_with(text))
        };
        let remedy = match entries.iter().find(explains) {
            Some(entry) => format!("[{}](#{})", entry.heading, entry.anchor()),
            None => row.remedy.to_owned(),
        };
        format!("| {} | {} | {remedy} |\n", row.code, row.cause.replace('*', "\\*"))
    };
    failure::TABLE.iter().map(row).collect()
}

#[test]
fn the_table_of_error_codes_has_each_failure() {
    let page = page();
    let (text, rows) = page.split_once(TABLE_HEAD).unwrap();
    let wanted = error_codes(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(docs().join(PAGE), [text, TABLE_HEAD, &wanted].concat()).unwrap();
        return;
    }
    assert_eq!(rows, wanted, "run UPDATE_DOCS=1 cargo test --test layout");
}

/// Searches as a user would, with the whole text and only this page at hand.
#[test]
fn troubleshooting_has_an_entry_for_each_captured_text() {
    let page = page();
    let entries = Entry::all(&page);
    let mut lost = Vec::new();
    for fault in FaultSection::all() {
        for (source, block) in fault.captured() {
            // A metric has no cause of its own, and the status of a pod has many causes. Failed
            // plugin calls have a code.
            let has_code = block.contains(" with code ");
            if source.starts_with("Metrics") || source.contains("get pods") || has_code {
                continue;
            }
            let leads = |entry: &Entry<'_>| {
                entry.anchor() == fault.anchor()
                    && entry.texts.iter().any(|text| block.contains(text))
            };
            if !entries.iter().any(leads) {
                lost.push(format!("{}: {source} {block}", fault.name));
            }
        }
    }
    assert!(
        lost.is_empty(),
        "no text of the page leads from these to their remedies:\n{}",
        lost.join("\n")
    );
}
