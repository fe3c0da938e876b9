//! Pages of the fault catalogue (`docs/faults`): compares what the programs print about a fault with what its page
//! quotes. With `UPDATE_DOCS=1` it writes the quotes instead, and leaves the prose of the page unchanged.

use std::collections::BTreeMap;
use std::fs;

const BEGIN: &str = "<!-- captured: written by a test with UPDATE_DOCS=1 -->\n";
const END: &str = "<!-- end of captured -->\n";

/// Where a text about a fault is shown. Pages quote the sources in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `kubectl describe pod`, in kubelet's Event.
    Kubelet,
    /// The whole Event of the kubelet.
    KubeletEvent,
    PodEvent,
    Helm,
    DaemonSetEvent,
    Pods,
    Ready,
    /// `/ready` with status 200.
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
                "`/ready` of the agent, and the Event `LinkerdCNINotReady` on the node after 5 minutes:"
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

/// The page of one fault, and what a test has captured of it.
pub struct FaultPage {
    name: &'static str,
    captured: BTreeMap<Source, String>,
}

impl FaultPage {
    pub fn new(name: &'static str) -> FaultPage {
        FaultPage { name, captured: BTreeMap::new() }
    }

    /// Adds a text, without anything that differs between runs.
    pub fn shows(&mut self, source: Source, text: &str) {
        let captured = self.captured.entry(source).or_default();
        captured.push_str(text.trim_end());
        captured.push('\n');
    }

    /// Fails if the page quotes another text, a further one, or not all of them.
    pub fn check(self) {
        let path = crate::repository().join("docs/faults").join(self.name);
        let path = path.with_extension("md");
        let page = fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; this was captured:\n{}", path.display(), self.render())
        });
        let parts =
            page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?)));
        let (head, (quoted, tail)) = parts
            .unwrap_or_else(|| panic!("{}: no comments around the captured texts", path.display()));
        let captured = self.render();
        if quoted == captured {
            return;
        }
        assert!(
            std::env::var_os("UPDATE_DOCS").is_some(),
            "docs/faults/{}.md quotes other texts than the programs print. Correct the programs, or run the test with \
             UPDATE_DOCS=1. Captured:\n{captured}\nQuoted:\n{quoted}",
            self.name
        );
        fs::write(path, [head, BEGIN, &captured, END, tail].concat()).unwrap();
    }

    fn render(&self) -> String {
        let blocks = self
            .captured
            .iter()
            .map(|(source, text)| format!("\n{}\n\n```text\n{text}```\n", source.heading()));
        format!("{}\n", blocks.collect::<String>())
    }
}

/// Replaces the numbers between `before` and `after` by `N`.
pub fn mask_numbers(text: &str, before: &str, after: &str) -> String {
    let mut pieces = text.split(before);
    let mut masked = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_number = rest.len() < piece.len() && rest.starts_with(after);
        masked.push_str(before);
        masked.push_str(if is_number { "N" } else { "" });
        masked.push_str(if is_number { rest } else { piece });
    }
    masked
}
