//! The pages of the fault catalogue (`docs/faults`) and their index, `docs/troubleshooting.md`, which this test writes
//! with `UPDATE_DOCS=1`. `docs/maintainers/faults.md` has how each fault is caused and what is shown of it. The tests that
//! compare these texts are in the suites `agent` and `cluster`.

use std::collections::BTreeMap;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use linkerd2_cni::failure;

/// Between the error texts of a row of the index.
const BETWEEN: &str = "`<br>`";

const REMEDY: &str = "## Remedy\n";
/// An optional section, with commands beside those of `HEAD` that verify every remedy.
const VERIFY: &str = "## Verify\n";
/// An optional section: error texts beside the title.
const OTHER_ERROR_TEXTS: &str = "## Other error texts\n";
/// An optional section: texts of other programs, and symptoms, each with its own cause. No test captures these texts.
const RELATED_TEXTS: &str = "## Related texts\n";
const HEAD: &str = "\
<!-- Written by UPDATE_DOCS=1 cargo test --test layout from docs/faults. -->

# Troubleshooting

Search this page for a few words of the error text, without the names of your pods and nodes. Each row links to the page with cause and remedy. The
texts are those of Events, `/ready`, the agent's log, Helm and `linkerd cni check`. `linkerd cni` is optional:
[cli.md](cli.md#without-the-extension) has the commands of kubectl instead.

```sh
kubectl describe pod -n NAMESPACE POD             # Events of a pod that does not start
linkerd cni check -o short                        # problems of the installation (cli.md)
linkerd cni explain POD -n NAMESPACE              # what the plugin does with a pod
kubectl get pods -n linkerd-cni -l k8s-app=linkerd-cni -o wide
kubectl logs -n linkerd-cni AGENT-POD -c install-cni --tail=50
```

After the remedy, verify that the agents and the pod get ready:

```sh
kubectl rollout status -n linkerd-cni daemonset/linkerd-cni --timeout=2m
kubectl wait -n NAMESPACE --for=condition=Ready pod/POD --timeout=2m
```

| error text | page |
| --- | --- |
";

/// Reasons of Events whose cause is in their note: what each means, and the page about it.
const EVENT_REASONS: [(&str, &str, &str); 4] = [
    (
        "LinkerdCNIContention",
        "Another program keeps overwriting a file of the agent. Search for a part of the Event's note.",
        "[alerts](alerts.md#linkerdcnicontention)",
    ),
    (
        "LinkerdCNIFailed",
        "The plugin could not redirect the pod. Search for the text after `Remedy:` in the Event's note, or for its code.",
        "[error-codes](error-codes.md)",
    ),
    (
        "LinkerdCNINotReady",
        "The agent of this node has not been ready for 5 minutes. Search for a part of the Event's note.",
        "[alerts](alerts.md#linkerdcninodenotready)",
    ),
    (
        "LinkerdCNIUninstallFailed",
        "The agent could not uninstall, or another program keeps chaining the plugin.",
        "[uninstall](uninstall.md#special-cases)",
    ),
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

struct Page {
    name: String,
    text: String,
    /// The section in `docs/maintainers/faults.md`: how to cause the fault, and the captured texts.
    shown: String,
}

impl Page {
    fn all() -> Vec<Page> {
        let mut paths: Vec<PathBuf> = fs::read_dir(docs().join("faults"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        let sections = fs::read_to_string(docs().join("maintainers/faults.md")).unwrap();
        let read = |path: PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let section = sections.split_once(&format!("\n## {name}\n"));
            let (_, shown) = section.unwrap_or_else(|| panic!("{name}: no section of its texts"));
            // The captured texts have no headings.
            let shown = shown.split("\n## ").next().unwrap().to_owned();
            Page { name, text, shown }
        };
        paths.into_iter().map(read).collect()
    }

    /// The error text that is the page's title.
    fn title(&self) -> &str {
        self.text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default()
    }

    /// The first line after the title.
    fn cause(&self) -> &str {
        self.text.lines().nth(2).unwrap_or_default()
    }

    /// The text below a heading; empty if the page does not have the heading.
    fn section(&self, heading: &str) -> &str {
        let rest = self.text.split_once(heading).map_or("", |(_, rest)| rest);
        rest.split("\n## ").next().unwrap_or_default()
    }

    /// The title, and the texts of `OTHER_ERROR_TEXTS`.
    fn error_texts(&self) -> Vec<&str> {
        let lines = self.section(OTHER_ERROR_TEXTS).lines();
        let other = lines.filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`'));
        iter::once(self.title()).chain(other).collect()
    }

    /// The texts of `RELATED_TEXTS`, each with its cause. A line may have several texts of one cause.
    fn related_texts(&self) -> Vec<(&str, &str)> {
        let rows = self.section(RELATED_TEXTS).lines().filter(|line| line.starts_with("- "));
        rows.flat_map(|line| {
            let row = line.strip_prefix("- `").and_then(|rest| rest.split_once("`: "));
            let (texts, cause) =
                row.unwrap_or_else(|| panic!("{}: no text and cause in {line}", self.name));
            texts.split("`, `").map(move |text| (text, cause))
        })
        .collect()
    }

    /// The captured texts, each with the line that introduces it.
    fn captured(&self) -> Vec<(&str, &str)> {
        let blocks = self.shown.split("\n```text\n").collect::<Vec<_>>();
        let pairs = blocks.windows(2).map(|pair| {
            let heading = pair[0].trim().lines().last().unwrap_or_default();
            (heading, pair[1].split("```").next().unwrap_or_default())
        });
        pairs.collect()
    }
}

#[test]
fn each_page_has_its_sections_and_its_error_texts_were_captured() {
    for page in Page::all() {
        let name = &page.name;
        assert!(page.section(REMEDY).trim().len() > 10, "{name}: no remedy");
        let cause = page.shown.split("<!-- captured: ").next().unwrap_or_default();
        assert!(cause.trim().len() > 10, "{name}: no word on how to cause it");
        let verify = page.section(VERIFY);
        assert!(verify.is_empty() || verify.contains("```sh\n"), "{name}: no command to verify");
        assert!(
            !page.cause().is_empty() && page.cause().ends_with('.'),
            "{name}: no cause below the title"
        );
        assert!(!page.title().is_empty(), "{name}: no title");
        let captured = page.captured();
        for text in page.error_texts() {
            let is_captured = captured.iter().any(|(_, block)| block.contains(text));
            assert!(is_captured, "{name}: no captured text has {text:?}");
        }
    }
}

#[test]
fn each_related_text_has_its_own_cause() {
    for page in Page::all() {
        let name = &page.name;
        for (text, cause) in page.related_texts() {
            assert!(!page.error_texts().contains(&text), "{name}: {text:?} is an error text");
            assert!(cause.ends_with('.'), "{name}: no cause on the line of {text:?}");
        }
    }
}

#[test]
fn each_page_has_one_test() {
    let mut tests = String::new();
    for folder in ["agent/catalogue", "cluster/catalogue"] {
        let Ok(entries) = fs::read_dir(super::source().join("tests").join(folder)) else {
            continue;
        };
        let paths = entries.map(|entry| entry.unwrap().path());
        let sources =
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
        sources.for_each(|path| tests += &fs::read_to_string(path).unwrap());
    }
    for Page { name, .. } in Page::all() {
        assert_eq!(
            tests.matches(&format!("(\"{name}\"")).count(),
            1,
            "tests of docs/faults/{name}.md"
        );
    }
}

/// The rows of the index, by the first of their error texts, regardless of case. A row has all texts of one cause, which it
/// names if it is not the first cause of the page.
fn index() -> String {
    let mut rows = BTreeMap::new();
    let mut add = |texts: &[&str], cell: &str| {
        let mut texts = texts.iter().map(|text| text.replace('|', "\\|")).collect::<Vec<_>>();
        texts.sort_by_key(|text| text.to_lowercase());
        let row = format!("| `{}` | {} |\n", texts.join(BETWEEN), cell.replace('|', "\\|"));
        rows.insert((texts[0].to_lowercase(), cell.to_owned()), row);
    };
    for page in Page::all() {
        let link = format!("[{name}](faults/{name}.md)", name = page.name);
        add(&page.error_texts(), &link);
        let mut related = BTreeMap::<_, Vec<_>>::new();
        for (text, cause) in page.related_texts() {
            related.entry(cause).or_default().push(text);
        }
        related.iter().for_each(|(cause, texts)| add(texts, &format!("{link}: {cause}")));
    }
    for (reason, cause, link) in EVENT_REASONS {
        add(&[reason], &format!("{link}: {cause}"));
    }
    HEAD.to_owned() + &rows.into_values().collect::<String>()
}

#[test]
fn the_troubleshooting_page_lists_the_error_texts_of_the_catalogue() {
    let path = docs().join("troubleshooting.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, index()).unwrap();
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == index(),
        "docs/troubleshooting.md is outdated: run UPDATE_DOCS=1 cargo test --test layout"
    );
}

const TABLE_HEAD: &str = "| code | name | cause | remedy |\n| --- | --- | --- | --- |\n";

/// The rows of the table in `docs/error-codes.md`.
fn error_codes() -> String {
    let row = |row: &failure::Row| {
        let [cause, remedy] = [row.cause, row.remedy].map(|text| text.replace('*', "\\*"));
        format!("| {} | `{}` | {cause} | {remedy} |\n", row.code, row.name)
    };
    failure::TABLE.iter().map(row).collect()
}

#[test]
fn error_codes_page_has_the_table_of_failures() {
    let path = docs().join("error-codes.md");
    let page = fs::read_to_string(&path).unwrap();
    let (text, rows) = page.split_once(TABLE_HEAD).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, [text, TABLE_HEAD, &error_codes()].concat()).unwrap();
        return;
    }
    assert_eq!(rows, error_codes(), "run UPDATE_DOCS=1 cargo test --test layout");
}

/// As a user would search: with the whole text, and only this page at hand.
#[test]
fn each_captured_text_leads_to_its_page() {
    let index = index();
    let rows: Vec<(&str, &str)> =
        index.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).collect();
    let mut lost = Vec::new();
    for page in Page::all() {
        let link = format!("(faults/{}.md)", page.name);
        for (source, block) in page.captured() {
            // A metric has no cause of its own, and a status of a pod many. Failed plugin calls have a code.
            let has_code = block.contains(" with code ");
            if source.starts_with("Metrics") || source.contains("get pods") || has_code {
                continue;
            }
            let leads = |(texts, rest): &&(&str, &str)| {
                let mut texts = texts.split(BETWEEN).map(|text| text.replace("\\|", "|"));
                rest.contains(&link) && texts.any(|text| block.contains(&text))
            };
            if !rows.iter().any(|row| leads(&row)) {
                lost.push(format!("{}: {source} {block}", page.name));
            }
        }
    }
    assert!(
        lost.is_empty(),
        "no row of the index leads from these texts to their pages:\n{}",
        lost.join("\n")
    );
}

/// Error texts as users paste them, with other names and times than those of the pages, and the page of each.
const PASTED: [(&str, &str); 14] = [
    (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \"93af\": \
         plugin type=\"linkerd-cni\" name=\"linkerd-cni\" failed (add): cannot read pod emojivoto/web-57f5d4b5c-9xq2p: \
         GET https://172.20.0.1:443/api/v1/namespaces/emojivoto/pods/web-57f5d4b5c-9xq2p: HTTP 401: Unauthorized \
         (API requests sent: 1); the linkerd-cni agent on this node renews the token: check that its pod is ready",
        "token-rejected",
    ),
    (
        "plugin type=\"linkerd-cni\" failed (add): failed to find plugin \"linkerd-cni\" in path [/usr/lib/cni]",
        "plugin-missing",
    ),
    (
        "io: invalid peer certificate: certificate expired: verification time 1795356315 (UNIX), but certificate",
        "certificate-expired",
    ),
    (
        "Failed to validate networking configuration. Please ensure iptables rules are rewriting traffic as expected.",
        "stranded-pod",
    ),
    (
        "not ready: binary: cannot create /host/opt/cni/bin/linkerd-cni: Read-only file system (os error 30); remount the \
         node's file system writable, or set the chart's platform, destCNINetDir or destCNIBinDir to a writable directory",
        "read-only-directory",
    ),
    (
        "/sbin/iptables-restore did not get the xtables lock in time: /run/xtables.lock is held by process 812",
        "xtables-lock",
    ),
    (
        "Error creating: pods is forbidden: violates PodSecurity \"baseline:latest\": hostPath",
        "namespace-label",
    ),
    (
        "/host/etc/cni/net.d/05-cilium.conflist keeps being overwritten by another writer, which removes the plugin entry, \
         so meshed pods may start without redirect rules: with Cilium set cni.exclusive=false",
        "plugin-entry-removed",
    ),
    (
        "image.version: v1.6.5 is upstream's image, which has no admin port and would never be ready with this chart's probes",
        "upstream-image",
    ),
    (
        "none of iptables-legacy, iptables, together with its -restore program, is in PATH; install iptables on the node, \
         or set the chart's iptablesMode to auto",
        "no-iptables",
    ),
    (
        "error killing pod: failed to \"KillPodSandbox\" for \"5d2c\" with KillPodSandboxError: \"rpc error: code = Unknown \
         desc = failed to destroy network for sandbox k8s_web: plugin type=\\\"linkerd-cni\\\" name=\\\"k8s-pod-network\\\" \
         failed (delete): failed to find plugin \\\"linkerd-cni\\\" in path [/opt/cni/bin]\"",
        "plugin-missing",
    ),
    ("linkerd-network-validator: Terminated, Reason: Error, exit code 95", "stranded-pod"),
    (
        "Get \"https://172.20.0.1:443/api/v1/namespaces/emojivoto/pods/web\": tls: failed to verify certificate: \
         x509: certificate signed by unknown authority",
        "wrong-ca",
    ),
    ("psql: could not connect to server: connection refused", "init-container-without-network"),
];

#[test]
fn pasted_error_texts_lead_to_their_pages() {
    let pages = Page::all();
    for (pasted, wanted) in PASTED {
        let texts = pages.iter().flat_map(|page| {
            let related = page.related_texts().into_iter().map(|(text, _)| text);
            page.error_texts().into_iter().chain(related).map(move |text| (text, page))
        });
        // The longest text of the index that the pasted one has.
        let found =
            texts.filter(|(text, _)| pasted.contains(text)).max_by_key(|(text, _)| text.len());
        let (_, page) = found.unwrap_or_else(|| panic!("nothing leads from {pasted}"));
        assert_eq!(page.name, wanted, "{pasted}");
    }
}
