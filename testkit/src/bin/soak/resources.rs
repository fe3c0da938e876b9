//! Measures memory, descriptors and threads of the agent and the repair controller, and checks that
//! they do not grow.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde::Serialize;
use testkit::repeated::Repeated;
use testkit::statistics::median;

use crate::ledger::{Invariant, record_violation};

const PROGRAMS: [(&str, &str); 2] = [
    ("agent", "/usr/bin/linkerd2-cni-install"),
    ("repair controller", "/usr/lib/linkerd/linkerd-cni-repair-controller"),
];
const PERIOD: Duration = Duration::from_secs(2);
/// Number of first samples of a process that are not used. They are those of the first 10 s, in
/// which the memory still grows because the process starts.
const SKIPPED_SAMPLES: usize = 5;
/// Smallest number of samples of a process whose own growth is judged: those of two minutes.
const MIN_SAMPLES: usize = 60;
/// How much the median of the last third of the samples may exceed that of the first third.
/// `rss_kb` is the resident memory with the pages of the program's file, and `private_kb` without
/// them.
const ALLOWED_GROWTH: [(&str, u64); 4] =
    [("rss_kb", 512), ("private_kb", 512), ("descriptors", 3), ("threads", 2)];

type Figures = BTreeMap<&'static str, u64>;
type Sample = (&'static str, i32, Figures);

#[derive(Serialize)]
pub struct Growth {
    program: &'static str,
    /// The processes of the program that have these samples.
    #[serde(rename = "of")]
    processes: String,
    /// Number of samples.
    samples: usize,
    first: Figures,
    last: Figures,
}

pub fn start() -> Repeated<Vec<Sample>> {
    Repeated::start(PERIOD, Vec::new(), |samples| samples.extend(take_samples()))
}

/// Compares the first and the last samples of each program, and of each process that ran long
/// enough. Too few samples of a program are a violation.
pub fn growths(samples: &[Sample]) -> Vec<Growth> {
    let mut growths = Vec::new();
    for (program, _) in PROGRAMS {
        let mut all = Vec::new();
        let mut by_process = BTreeMap::<i32, Vec<&Figures>>::new();
        for (_, pid, figures) in samples.iter().filter(|(name, ..)| *name == program) {
            let process = by_process.entry(*pid).or_default();
            process.push(figures);
            if process.len() > SKIPPED_SAMPLES {
                all.push(figures);
            }
        }
        if all.len() < 3 {
            let count = all.len();
            let description = format!("{program}: no comparison, as there are {count} samples");
            record_violation(Invariant::Flat, description);
            continue;
        }
        growths.push(compare(program, format!("{} processes", by_process.len()), &all));
        for (pid, process) in &by_process {
            if process.len() >= SKIPPED_SAMPLES + MIN_SAMPLES {
                let used_samples = &process[SKIPPED_SAMPLES..];
                growths.push(compare(program, format!("process {pid}"), used_samples));
            }
        }
    }
    for growth in &growths {
        if growth.exceeds_limits() {
            let description = format!(
                "{}, {}: {:?}, then {:?}",
                growth.program, growth.processes, growth.first, growth.last
            );
            record_violation(Invariant::Flat, description);
        }
    }
    growths
}

impl Growth {
    fn exceeds_limits(&self) -> bool {
        ALLOWED_GROWTH.iter().any(|(name, growth)| self.last[name] > self.first[name] + growth)
    }
}

/// Compares the first third of the samples with the last third.
fn compare(program: &'static str, processes: String, samples: &[&Figures]) -> Growth {
    let third = samples.len() / 3;
    let first = medians(&samples[..third]);
    let last = medians(&samples[samples.len() - third..]);
    Growth { program, processes, samples: samples.len(), first, last }
}

fn medians(samples: &[&Figures]) -> Figures {
    let mut medians = Figures::new();
    for (name, _) in ALLOWED_GROWTH {
        let mut values: Vec<u64> = samples.iter().map(|figures| figures[name]).collect();
        medians.insert(name, median(&mut values));
    }
    medians
}

/// Takes a sample of each process of the programs on this node. The processes of other nodes on
/// this machine are left out, because they are in other control groups.
fn take_samples() -> impl Iterator<Item = Sample> {
    let node = format!("/{}/", std::env::var("CLUSTER_CGROUP").unwrap_or_default());
    testkit::pids().filter_map(move |pid| {
        // Both programs are the same file, so the name in the command line tells them apart.
        let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let program = command_line.split('\0').next()?;
        let (name, _) = PROGRAMS.into_iter().find(|(_, path)| program == *path)?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        if !groups.contains(&node) {
            return None;
        }
        Some((name, pid, read_figures(pid)?))
    })
}

fn read_figures(pid: i32) -> Option<Figures> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Figures::from([
        ("rss_kb", field(&status, "VmRSS:")?),
        ("private_kb", field(&status, "RssAnon:")?),
        ("threads", field(&status, "Threads:")?),
        ("descriptors", fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64),
    ]))
}

/// Returns the number of the field `name` in the text of `/proc/PID/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
