//! Compares what the programs print about a fault with what its section in
//! `docs/maintainers/faults.md` quotes. With `UPDATE_DOCS=1` it writes the quotes instead, and
//! leaves the prose of the section unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = "docs/maintainers/faults.md";
const END: &str = "<!-- end of captured -->\n";

/// Locked while the page is read and written, because the tests of a suite run at the same time.
static WRITER: Mutex<()> = Mutex::new(());

/// Where a text about a fault is shown. The variants have the order of the texts in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Kubelet,
    KubeletEvent,
    PodEvent,
    Helm,
    DaemonSetEvent,
    Pods,
    Ready,
    ReadyNote,
    AgentLog,
    RepairLog,
    ContainerLog,
    Metrics,
    Check,
}

impl Source {
    fn heading(self) -> &'static str {
        match self {
            Source::Kubelet => {
                "`kubectl describe pod`, at the end of kubelet's Event `FailedCreatePodSandBox`:"
            }
            Source::KubeletEvent => "`kubectl describe pod`, kubelet's Event:",
            Source::PodEvent => "Event on the pod, by linkerd-cni:",
            Source::Helm => "`helm install` or `helm upgrade`:",
            Source::DaemonSetEvent => "Event on the DaemonSet or on the agent's pod:",
            Source::Pods => "`kubectl get pods`, without the last columns:",
            Source::Ready => {
                "`/ready` of the agent, and the Event `LinkerdCNINotReady` on the node after 5 to \
                 10 minutes:"
            }
            Source::ReadyNote => "`/ready` of the agent, which stays ready:",
            Source::AgentLog => "Log of the agent:",
            Source::RepairLog => "Log of the repair controller:",
            Source::ContainerLog => "Log of the pod's init container:",
            Source::Metrics => "Metrics:",
            Source::Check => "`linkerd cni check -o short`:",
        }
    }
}

pub struct FaultPage {
    name: &'static str,
    captured: BTreeMap<Source, String>,
}

impl FaultPage {
    pub fn new(name: &'static str) -> FaultPage {
        FaultPage { name, captured: BTreeMap::new() }
    }

    pub fn shows(&mut self, source: Source, text: &str) {
        let captured = self.captured.entry(source).or_default();
        captured.push_str(text.trim_end());
        captured.push('\n');
    }

    /// Fails unless the page quotes the captured texts. With `UPDATE_DOCS=1`, writes them into the
    /// page instead.
    pub fn assert_documented(self) {
        let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
        let path = crate::repository().join(PAGE);
        let page = fs::read_to_string(&path).unwrap();
        let name = self.name;
        let captured = self.render();
        let begin = format!("\n<!-- captured: {name} -->\n");
        let Some((head, rest)) = page.split_once(&begin) else {
            panic!("{PAGE} has no section of {name} for this:\n{captured}");
        };
        let (quoted, tail) = rest.split_once(END).expect("an end of what is captured");
        if quoted == captured {
            return;
        }
        assert!(
            std::env::var_os("UPDATE_DOCS").is_some(),
            "{PAGE} quotes other texts of {name} than the programs print. Correct the programs, or \
             run the test with UPDATE_DOCS=1. Captured:\n{captured}\nQuoted:\n{quoted}"
        );
        fs::write(path, [head, &begin, &captured, END, tail].concat()).unwrap();
    }

    fn render(&self) -> String {
        let mut blocks = String::new();
        for (source, text) in &self.captured {
            blocks.push_str(&format!("\n{}\n\n```text\n{text}```\n", source.heading()));
        }
        blocks.push('\n');
        blocks
    }
}

/// Replaces the numbers between `before` and `after` by `N`.
pub fn mask_numbers(text: &str, before: &str, after: &str) -> String {
    let mut pieces = text.split(before);
    let mut masked = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        masked.push_str(before);
        if rest.len() < piece.len() && rest.starts_with(after) {
            masked.push('N');
            masked.push_str(rest);
        } else {
            masked.push_str(piece);
        }
    }
    masked
}

/// Returns the problems in the output of `linkerd cni check -o short`, each as a text of one or
/// more lines.
pub fn problems(report: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for line in report.lines().map(|line| line.replace('\t', "        ")) {
        if line.starts_with(['×', '‼', '?']) {
            problems.push(format!("{line}\n"));
        } else if line.starts_with(' ')
            && let Some(problem) = problems.last_mut()
        {
            problem.push_str(&format!("{line}\n"));
        }
    }
    problems
}
