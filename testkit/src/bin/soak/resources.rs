//! Memory, descriptors and threads of the agent and the repair controller.

use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;
use testkit::repeated::Repeated;

use crate::ledger::{Invariant, Ledger};

const PROGRAMS: [(&str, &str); 2] = [
    ("agent", "/usr/bin/linkerd2-cni-install"),
    ("repair controller", "/usr/lib/linkerd/linkerd-cni-repair-controller"),
];
const PERIOD: Duration = Duration::from_secs(2);
/// Age from which a process counts: it has started, and renders no more.
const AGE: Duration = Duration::from_secs(10);
/// Number of samples of a process whose growth is judged: two minutes.
const SAMPLES: usize = 60;
/// What may differ between the first and the last third of the samples.
const ALLOWED_GROWTH: ProcessFigures =
    ProcessFigures { rss_kb: 512, private_kb: 512, descriptors: 3, threads: 2 };

/// Figures of a process, or medians of several.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProcessFigures {
    /// Resident memory, with the pages of the program's file.
    pub rss_kb: u64,
    /// Resident memory of this process alone.
    pub private_kb: u64,
    pub descriptors: u64,
    pub threads: u64,
}

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

/// Samples until [`Sampler::finish`].
pub struct Sampler(Repeated<Samples>);

#[derive(Default)]
struct Samples {
    taken: Vec<Sample>,
    first_seen: Vec<(i32, Instant)>,
}

impl Samples {
    fn take(&mut self) {
        let found = processes();
        self.first_seen.retain(|(pid, _)| found.iter().any(|(_, found)| found == pid));
        for (program, pid) in found {
            match self.first_seen.iter().find(|(seen, _)| *seen == pid) {
                None => self.first_seen.push((pid, Instant::now())),
                Some((_, since)) if since.elapsed() > AGE => {
                    let sample = figures(pid).map(|figures| Sample { program, pid, figures });
                    self.taken.extend(sample);
                }
                Some(_) => {}
            }
        }
    }
}

impl Sampler {
    pub fn start() -> Sampler {
        Sampler(Repeated::start(PERIOD, Samples::default(), Samples::take))
    }

    /// Compares the samples of each program in the whole run, and of each process that ran long enough. A program with
    /// too few samples for a comparison is a violation: its growth was not checked.
    pub fn finish(self, ledger: &Ledger) -> Vec<Growth> {
        let samples = self.0.finish().taken;
        let mut growths = Vec::new();
        for (program, _) in PROGRAMS {
            let of_program = || samples.iter().filter(|sample| sample.program == program);
            let mut pids: Vec<i32> = of_program().map(|sample| sample.pid).collect();
            pids.sort_unstable();
            pids.dedup();
            let all: Vec<ProcessFigures> = of_program().map(|sample| sample.figures).collect();
            let whole_run = compare(program, format!("{} processes", pids.len()), &all);
            if whole_run.is_none() {
                let seen = format!("{program}: no comparison, as there are {} samples", all.len());
                ledger.violated(Invariant::Flat, seen);
            }
            growths.extend(whole_run);
            for pid in &pids {
                let own = of_program().filter(|sample| sample.pid == *pid);
                let own: Vec<ProcessFigures> = own.map(|sample| sample.figures).collect();
                if own.len() >= SAMPLES {
                    growths.extend(compare(program, format!("process {pid}"), &own));
                }
            }
        }
        for growth in &growths {
            growth.check(ledger);
        }
        growths
    }
}

impl Growth {
    fn check(&self, ledger: &Ledger) {
        let Growth { first, last, .. } = self;
        let grew = last.rss_kb > first.rss_kb + ALLOWED_GROWTH.rss_kb
            || last.private_kb > first.private_kb + ALLOWED_GROWTH.private_kb
            || last.descriptors > first.descriptors + ALLOWED_GROWTH.descriptors
            || last.threads > first.threads + ALLOWED_GROWTH.threads;
        if grew {
            let seen = format!("{}, {}: {first:?}, then {last:?}", self.program, self.of);
            ledger.violated(Invariant::Flat, seen);
        }
    }
}

fn compare(program: &'static str, of: String, all: &[ProcessFigures]) -> Option<Growth> {
    let third = all.len() / 3;
    if third == 0 {
        return None;
    }
    let (first, last) = (median(&all[..third]), median(&all[all.len() - third..]));
    Some(Growth { program, of, samples: all.len(), first, last })
}

fn median(figures: &[ProcessFigures]) -> ProcessFigures {
    let of = |field: fn(&ProcessFigures) -> u64| {
        let mut values: Vec<u64> = figures.iter().map(field).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    ProcessFigures {
        rss_kb: of(|one| one.rss_kb),
        private_kb: of(|one| one.private_kb),
        descriptors: of(|one| one.descriptors),
        threads: of(|one| one.threads),
    }
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
    Some(ProcessFigures {
        rss_kb: field("VmRSS:")?,
        private_kb: field("RssAnon:")?,
        threads: field("Threads:")?,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
    })
}
