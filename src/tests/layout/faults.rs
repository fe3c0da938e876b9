//! The error texts of `docs/troubleshooting.md`: each stands once, has a cause and a remedy, and is printed by a program. Its
//! table of codes is that of `failure::TABLE`, which this test writes with `UPDATE_DOCS=1`. `docs/maintainers/faults.md` has
//! how each fault is caused and what is shown of it. The tests that compare these texts are in the suites `agent` and
//! `cluster`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use linkerd2_cni::failure;

const PAGE: &str = "troubleshooting.md";

/// Texts that no test captures: of Helm, the scheduler, the kubelet, other plugins and policy engines, or of faults that
/// these tests cannot cause.
const NOT_CAPTURED: [&str; 51] = [
    "invalid ownership metadata",
    "kubectl-client-side-apply",
    "chart requires kubeVersion",
    "a name that is still in use",
    "another operation (install/upgrade/rollback) is in progress",
    "context deadline exceeded",
    "timed out waiting for the condition",
    "exceeded quota",
    "failed quota",
    "denied request",
    "pull access denied",
    "is not JSON",
    "cni plugin not initialized",
    "No route to host",
    "timeout: connect",
    "has not responded yet",
    "Startup probe failed",
    "insufficient quota to match these scopes",
    "denied the request",
    "unable to validate against any security context constraint",
    "GKE Warden rejected the request",
    "ValidatingAdmissionPolicy 'linkerd-cni-",
    "Insufficient cpu",
    "Insufficient memory",
    "Too many pods",
    "didn't match Pod's node affinity/selector",
    "untolerated taint",
    "ErrImagePull",
    "cr.l5d.io/linkerd/cni-plugin",
    "exec format error",
    "no match for platform in manifest",
    "FailedPreStopHook",
    "Operation not permitted (os error 1)",
    "the agent may not list and watch pods",
    "cannot watch the pods of this node",
    "is not published:",
    "more pods of this node are not published",
    "invalid peer certificate: certificate not valid for name",
    "x509: certificate signed by unknown authority",
    "load the kernel module nft_redir",
    "load the kernel module nft_chain_nat",
    "Operation not supported",
    "failed (delete): failed to find plugin",
    "linkerd-network-validator",
    "exit code 95",
    "connection refused",
    "Init:0/1",
    "Init:Error",
    "LinkerdCNINotReady",
    "LinkerdCNIContention",
    "LinkerdCNIUninstallFailed",
];

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
        assert!(remedy.ends_with('.') && remedy.len() > 14, "{texts:?}: {remedy}");
    }
    assert!(seen.len() > 100, "{} texts", seen.len());
}

#[test]
fn each_error_text_was_captured_or_is_known_to_be_another_programs() {
    let (page, faults) = (page(), FaultSection::all());
    let is_captured = |text: &str| {
        faults.iter().flat_map(FaultSection::captured).any(|(_, block)| block.contains(text))
    };
    let texts: Vec<_> = Entry::all(&page).into_iter().flat_map(|entry| entry.texts).collect();
    let lost: Vec<_> =
        texts.iter().filter(|text| !NOT_CAPTURED.contains(text) && !is_captured(text)).collect();
    assert!(lost.is_empty(), "no captured text has {lost:#?}");
    let is_stale = |text: &&&str| !texts.contains(text) || is_captured(text);
    let stale: Vec<_> = NOT_CAPTURED.iter().filter(is_stale).collect();
    assert!(stale.is_empty(), "the page lacks these, or they are captured: {stale:#?}");
}

#[test]
fn each_fault_has_a_cause_and_a_test() {
    let mut tests = String::new();
    for folder in ["agent/catalogue", "cluster/catalogue"] {
        let entries = fs::read_dir(super::source().join("tests").join(folder)).unwrap();
        for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            tests += &fs::read_to_string(path).unwrap();
        }
    }
    let faults = FaultSection::all();
    assert!(faults.len() > 45, "{} faults", faults.len());
    for FaultSection { name, text } in faults {
        let cause = text.split("<!-- captured: ").next().unwrap_or_default();
        assert!(cause.trim().len() > 40, "{name}: no word on how to cause it");
        assert!(tests.contains(&format!("\"{name}\"")), "no test causes {name}");
    }
}

const TABLE_HEAD: &str = "| code | cause | remedy |\n| --- | --- | --- |\n";

/// The rows of the page's table of error codes. A remedy that an entry of the page explains is a link.
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

/// As a user would search: with the whole text, and only this page at hand.
#[test]
fn each_captured_text_leads_to_its_remedy() {
    let page = page();
    let entries = Entry::all(&page);
    let mut lost = Vec::new();
    for fault in FaultSection::all() {
        for (source, block) in fault.captured() {
            // A metric has no cause of its own, and a status of a pod many. Failed plugin calls have a code.
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

/// Error texts that no test captures, as users paste them, and the text of the page that leads from each to its remedy.
const PASTED: [(&str, &str); 13] = [
    (
        "ClusterRole \"linkerd-cni\" exists and cannot be imported into the current release: invalid ownership metadata",
        "invalid ownership metadata",
    ),
    ("INSTALLATION FAILED: chart requires kubeVersion: >=1.31.0-0", "chart requires kubeVersion"),
    ("0/3 nodes are available: 1 Too many pods, 2 node(s) were unschedulable.", "Too many pods"),
    ("exec /usr/bin/linkerd2-cni-install: exec format error", "exec format error"),
    (
        "error killing pod: failed to \"KillPodSandbox\" for \"5d2c\": failed to destroy network for sandbox k8s_web: plugin \
         type=\\\"linkerd-cni\\\" failed (delete): failed to find plugin \\\"linkerd-cni\\\" in path [/opt/cni/bin]",
        "failed (delete): failed to find plugin",
    ),
    ("linkerd-network-validator: Terminated, Reason: Error, exit code 95", "exit code 95"),
    (
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        "x509: certificate signed by unknown authority",
    ),
    ("psql: could not connect to server: connection refused", "connection refused"),
    (
        "0/12 nodes are available: 1 Insufficient cpu, 11 node(s) didn't satisfy plugin(s) [NodeAffinity]",
        "Insufficient cpu",
    ),
    (
        "Failed to pull image \"registry.example.com/linkerd/cni-plugin:v2.0.0\": no match for platform in manifest",
        "no match for platform in manifest",
    ),
    (
        "Error creating: pods \"linkerd-cni-8x2kd\" is forbidden: exceeded quota: default, requested: pods=1",
        "exceeded quota",
    ),
    (
        "admission webhook \"validate.kyverno.svc-fail\" denied the request: resource Pod/linkerd-cni/linkerd-cni-8x2kd",
        "denied the request",
    ),
    (
        "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'linkerd-cni-taint' with binding 'linkerd-cni-taint' denied \
         request: linkerd-cni may only remove the startup taint from a node",
        "ValidatingAdmissionPolicy 'linkerd-cni-",
    ),
];

#[test]
fn pasted_error_texts_lead_to_their_remedies() {
    let page = page();
    let entries = Entry::all(&page);
    let texts =
        || entries.iter().flat_map(|entry| entry.texts.iter().map(move |text| (text, entry)));
    for (pasted, wanted) in PASTED {
        // The longest text of the page that the pasted one has.
        let found = texts().filter(|(text, _)| pasted.contains(**text));
        let (_, entry) = found.max_by_key(|(text, _)| text.len()).expect(pasted);
        assert!(entry.texts.contains(&wanted), "{pasted} leads to {:?}", entry.texts);
    }
}
