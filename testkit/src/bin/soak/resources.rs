//! Memory, descriptors and threads of the agent and the repair controller.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde::Serialize;
use testkit::repeated::Repeated;
use testkit::statistics::median;

use crate::ledger::{Invariant, violated};

const PROGRAMS: [(&str, &str); 2] = [
    ("agent", "/usr/bin/linkerd2-cni-install"),
    ("repair controller", "/usr/lib/linkerd/linkerd-cni-repair-controller"),
];
const PERIOD: Duration = Duration::from_secs(2);
/// Samples of a process that do not count, of the first 10 s: its memory still grows while it
/// starts.
const FIRST: usize = 5;
/// Number of samples of a process whose growth is judged: two minutes.
const SAMPLES: usize = 60;
/// How much the last third of the samples may exceed the first: resident memory with the pages of
/// the program's file, and of the process alone, open files, and threads.
const ALLOWED_GROWTH: [(&str, u64); 4] =
    [("rss_kb", 512), ("private_kb", 512), ("descriptors", 3), ("threads", 2)];

type Figures = BTreeMap<&'static str, u64>;
type Sample = (&'static str, i32, Figures);

#[derive(Serialize)]
pub struct Growth {
    program: &'static str,
    of: String,
    samples: usize,
    first: Figures,
    last: Figures,
}

pub fn start() -> Repeated<Vec<Sample>> {
    Repeated::start(PERIOD, Vec::new(), |samples| samples.extend(sample()))
}

/// Compares the samples of each program, and of each process that ran long enough. Too few are a
/// violation.
pub fn growths(samples: &[Sample]) -> Vec<Growth> {
    let mut growths = Vec::new();
    for (program, _) in PROGRAMS {
        let (mut all, mut by_process) = (Vec::new(), BTreeMap::<i32, Vec<&Figures>>::new());
        for (_, pid, figures) in samples.iter().filter(|sample| sample.0 == program) {
            let own = by_process.entry(*pid).or_default();
            own.push(figures);
            if own.len() > FIRST {
                all.push(figures);
            }
        }
        if all.len() < 3 {
            let seen = format!("{program}: no comparison, as there are {} samples", all.len());
            violated(Invariant::Flat, seen);
            continue;
        }
        growths.push(compare(program, format!("{} processes", by_process.len()), &all));
        for (pid, own) in by_process.iter().filter(|(_, own)| own.len() >= SAMPLES + FIRST) {
            growths.push(compare(program, format!("process {pid}"), &own[FIRST..]));
        }
    }
    for Growth { program, of, first, last, .. } in &growths {
        if ALLOWED_GROWTH.iter().any(|(name, growth)| last[name] > first[name] + growth) {
            violated(Invariant::Flat, format!("{program}, {of}: {first:?}, then {last:?}"));
        }
    }
    growths
}

fn compare(program: &'static str, of: String, all: &[&Figures]) -> Growth {
    let third = all.len() / 3;
    let first = medians(&all[..third]);
    let last = medians(&all[all.len() - third..]);
    Growth { program, of, samples: all.len(), first, last }
}

fn medians(samples: &[&Figures]) -> Figures {
    let mut medians = Figures::new();
    for (name, _) in ALLOWED_GROWTH {
        let mut values: Vec<u64> = samples.iter().map(|figures| figures[name]).collect();
        medians.insert(name, median(&mut values));
    }
    medians
}

/// The programs' processes on this node, which all are in its control group.
fn sample() -> impl Iterator<Item = Sample> {
    let node = format!("/{}/", std::env::var("CLUSTER_CGROUP").unwrap_or_default());
    testkit::pids().filter_map(move |pid| {
        // Both are the same file, under two names.
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let program = line.split('\0').next()?;
        let (name, _) = PROGRAMS.into_iter().find(|(_, path)| program == *path)?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        if !groups.contains(&node) {
            return None;
        }
        Some((name, pid, figures(pid)?))
    })
}

fn figures(pid: i32) -> Option<Figures> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Figures::from([
        ("rss_kb", field(&status, "VmRSS:")?),
        ("private_kb", field(&status, "RssAnon:")?),
        ("threads", field(&status, "Threads:")?),
        ("descriptors", fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64),
    ]))
}

/// Returns a number in the text of `/proc/PID/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
