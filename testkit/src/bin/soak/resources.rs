//! Memory, descriptors and threads of the agent and the repair controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;
use testkit::repeated::Repeated;
use testkit::statistics::median;

use crate::ledger::{Invariant, violated};

const PROGRAMS: [(&str, &str); 2] = [
    ("agent", "/usr/bin/linkerd2-cni-install"),
    ("repair controller", "/usr/lib/linkerd/linkerd-cni-repair-controller"),
];
const PERIOD: Duration = Duration::from_secs(2);
/// Age from which a process is measured: its memory still grows while it starts.
const AGE: Duration = Duration::from_secs(10);
/// Number of samples of a process whose growth is judged: two minutes.
const SAMPLES: usize = 60;
/// What may differ between the first and the last third of the samples: resident memory with the pages of the program's
/// file, resident memory of the process alone, open files, and threads.
const ALLOWED_GROWTH: [(&str, u64); 4] =
    [("rss_kb", 512), ("private_kb", 512), ("descriptors", 3), ("threads", 2)];

/// Figures of a process, or medians of several, by the names in [`ALLOWED_GROWTH`].
type ProcessFigures = BTreeMap<&'static str, u64>;

struct Sample {
    program: &'static str,
    pid: i32,
    figures: ProcessFigures,
}

/// First and last third of the samples of a program, or of one of its processes.
#[derive(Clone, Serialize)]
pub struct Growth {
    pub program: &'static str,
    /// What the samples are of.
    pub of: String,
    pub samples: usize,
    pub first: ProcessFigures,
    pub last: ProcessFigures,
}

#[derive(Default)]
pub struct Samples {
    taken: Vec<Sample>,
    /// When each process was seen first.
    since: BTreeMap<i32, Instant>,
}

impl Samples {
    fn take(&mut self) {
        let found = processes();
        self.since.retain(|pid, _| found.iter().any(|(_, found)| found == pid));
        for (program, pid) in found {
            if self.since.entry(pid).or_insert_with(Instant::now).elapsed() > AGE {
                let sample = figures(pid).map(|figures| Sample { program, pid, figures });
                self.taken.extend(sample);
            }
        }
    }
}

pub fn start() -> Repeated<Samples> {
    Repeated::start(PERIOD, Samples::default(), Samples::take)
}

/// Compares the samples of each program in the whole run, and of each process that ran long enough. A program with
/// too few samples for a comparison is a violation: its growth was not checked.
pub fn growths(samples: &Samples) -> Vec<Growth> {
    let mut growths = Vec::new();
    for (program, _) in PROGRAMS {
        let of_program = || samples.taken.iter().filter(|sample| sample.program == program);
        let pids: BTreeSet<i32> = of_program().map(|sample| sample.pid).collect();
        let all: Vec<_> = of_program().collect();
        let whole_run = compare(program, format!("{} processes", pids.len()), &all);
        if whole_run.is_none() {
            let seen = format!("{program}: no comparison, as there are {} samples", all.len());
            violated(Invariant::Flat, seen);
        }
        growths.extend(whole_run);
        for pid in &pids {
            let own: Vec<_> = of_program().filter(|sample| sample.pid == *pid).collect();
            if own.len() >= SAMPLES {
                growths.extend(compare(program, format!("process {pid}"), &own));
            }
        }
    }
    for Growth { program, of, first, last, .. } in &growths {
        if ALLOWED_GROWTH.iter().any(|(name, growth)| last[name] > first[name] + growth) {
            violated(Invariant::Flat, format!("{program}, {of}: {first:?}, then {last:?}"));
        }
    }
    growths
}

fn compare(program: &'static str, of: String, all: &[&Sample]) -> Option<Growth> {
    let third = all.len() / 3;
    if third == 0 {
        return None;
    }
    let [first, last] = [&all[..third], &all[all.len() - third..]].map(|samples| {
        let of = |(name, _)| {
            let mut values: Vec<_> = samples.iter().map(|sample| sample.figures[name]).collect();
            (name, median(&mut values))
        };
        ALLOWED_GROWTH.map(of).into()
    });
    Some(Growth { program, of, samples: all.len(), first, last })
}

/// The programs' processes on this node, which all are in its control group.
fn processes() -> Vec<(&'static str, i32)> {
    let node = std::env::var("CLUSTER_CGROUP").unwrap_or_default();
    let of_program = |pid| {
        // Both are the same file, under two names.
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let program = line.split('\0').next()?;
        let (name, _) = PROGRAMS.into_iter().find(|(_, path)| program == *path)?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        groups.contains(&format!("/{node}/")).then_some((name, pid))
    };
    testkit::pids().filter_map(of_program).collect()
}

fn figures(pid: i32) -> Option<ProcessFigures> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(ProcessFigures::from([
        ("rss_kb", field("VmRSS:")?),
        ("private_kb", field("RssAnon:")?),
        ("threads", field("Threads:")?),
        ("descriptors", fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64),
    ]))
}
