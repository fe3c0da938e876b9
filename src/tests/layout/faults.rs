//! Checks `docs/troubleshooting.md`: each error text is listed once, has a cause and a remedy, and
//! is printed by a program. The page's table of codes is that of `failure::TABLE`; with
//! `UPDATE_DOCS=1`, this test writes it.
//!
//! `docs/maintainers/faults.md` says for each fault how to cause it, and quotes the texts that the
//! programs print then. The tests that compare these texts are in the suites `agent` and `cluster`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use linkerd2_cni::failure;

const PAGE: &str = "troubleshooting.md";

/// Texts that no test captures: those of Helm, the scheduler, the kubelet, other plugins and policy
/// engines, and those of faults that the tests cannot cause. After ` | `, a line may have a whole
/// message with the text, as users search for it.
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
    /// Returns the anchor of the heading.
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
        let mut faults = Vec::new();
        // The captured texts have no headings.
        for section in sections.split("\n## ").skip(1) {
            let (name, text) = section.split_once('\n').unwrap();
            faults.push(FaultSection { name: name.to_owned(), text: text.to_owned() });
        }
        faults
    }

    /// Returns the anchor of the heading of [`PAGE`] with the remedy.
    fn anchor(&self) -> &str {
        let link = self.text.split_once(&format!("(../{PAGE}#"));
        let (_, rest) = link.unwrap_or_else(|| panic!("{}: no link to its remedy", self.name));
        rest.split(')').next().unwrap_or_default()
    }

    /// Returns the captured texts, each with the line that introduces it.
    fn captured(&self) -> Vec<(&str, &str)> {
        let mut texts = Vec::new();
        let parts: Vec<&str> = self.text.split("\n```text\n").collect();
        // A text is at the start of each part but the first. The part before it ends with the line
        // that introduces the text.
        for pair in parts.windows(2) {
            let heading = pair[0].trim().lines().last().unwrap_or_default();
            let text = pair[1].split("```").next().unwrap_or_default();
            texts.push((heading, text));
        }
        texts
    }
}

#[test]
fn each_error_text_is_listed_once_with_a_remedy() {
    let page = page();
    let mut texts = BTreeSet::new();
    for entry in Entry::all(&page) {
        for text in &entry.texts {
            assert!(text.len() > 7 && !text.contains('`'), "{text}");
            assert!(texts.insert(*text), "{text} stands twice");
        }
        assert!(!entry.remedy.is_empty(), "{:?} has no remedy", entry.texts);
    }
    assert!(texts.len() > 100, "{} texts", texts.len());
}

#[test]
fn each_error_text_is_captured_or_listed_as_not_captured() {
    let page = page();
    let faults = FaultSection::all();
    let entries = Entry::all(&page);
    let mut texts = Vec::new();
    for entry in &entries {
        texts.extend(entry.texts.iter().map(|text| (*text, entry)));
    }
    let is_captured = |text: &str| {
        faults.iter().flat_map(FaultSection::captured).any(|(_, block)| block.contains(text))
    };
    let mut uncaptured: BTreeSet<&str> = texts.iter().map(|(text, _)| *text).collect();
    uncaptured.retain(|text| !is_captured(text));
    for line in NOT_CAPTURED.lines() {
        let (text, message) = line.split_once(" | ").unwrap_or((line, line));
        // The entry with the longest text that the message contains.
        let matching_texts = texts.iter().filter(|(other, _)| message.contains(*other));
        let (_, entry) = matching_texts.max_by_key(|(other, _)| other.len()).expect(message);
        assert!(entry.texts.contains(&text), "{message} leads to {:?}", entry.texts);
        assert!(uncaptured.remove(text), "{text} stands twice, or is captured");
    }
    assert!(uncaptured.is_empty(), "no captured text has {uncaptured:#?}");
}

#[test]
fn each_fault_has_a_cause_and_a_test() {
    let directory = super::source().join("tests");
    let mut tests = fs::read_to_string(directory.join("cluster/catalogue.rs")).unwrap();
    for entry in fs::read_dir(directory.join("agent/catalogue")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            tests += &fs::read_to_string(path).unwrap();
        }
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

/// Returns the rows of the page's table of error codes. A remedy that an entry of the page explains
/// is a link.
fn error_codes(page: &str) -> String {
    let entries = Entry::all(page);
    let mut rows = String::new();
    for row in failure::TABLE {
        let explains_row = |entry: &&Entry<'_>| {
            entry.texts.iter().any(|text| row.cause == *text || row.remedy.starts_with(text))
        };
        let remedy = match entries.iter().find(explains_row) {
            Some(entry) => format!("[{}](#{})", entry.heading, entry.anchor()),
            None => row.remedy.to_owned(),
        };
        let cause = row.cause.replace('*', "\\*");
        rows += &format!("| {} | {cause} | {remedy} |\n", row.code);
    }
    rows
}

#[test]
fn table_of_error_codes_has_each_failure() {
    let page = page();
    let (text, rows) = page.split_once(TABLE_HEAD).unwrap();
    let expected = error_codes(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(docs().join(PAGE), [text, TABLE_HEAD, &expected].concat()).unwrap();
        return;
    }
    assert_eq!(rows, expected, "run UPDATE_DOCS=1 cargo test --test layout");
}

/// Searches the page for a captured text, as a user would.
#[test]
fn troubleshooting_has_an_entry_for_each_captured_text() {
    let page = page();
    let entries = Entry::all(&page);
    let mut texts_without_entry = Vec::new();
    for fault in FaultSection::all() {
        for (source, block) in fault.captured() {
            // A metric has no cause of its own, and the status of a pod has many causes. Failed
            // plugin calls have a code.
            let has_code = block.contains(" with code ");
            if source.starts_with("Metrics") || source.contains("get pods") || has_code {
                continue;
            }
            let has_text = |entry: &Entry<'_>| {
                entry.anchor() == fault.anchor()
                    && entry.texts.iter().any(|text| block.contains(text))
            };
            if !entries.iter().any(has_text) {
                texts_without_entry.push(format!("{}: {source} {block}", fault.name));
            }
        }
    }
    assert!(
        texts_without_entry.is_empty(),
        "no text of the page leads from these to their remedies:\n{}",
        texts_without_entry.join("\n")
    );
}
