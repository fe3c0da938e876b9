//! Bugs that the soak itself seeds, to show that it would find such bugs.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use testkit::cluster::active;
use testkit::cluster::node::replace;

use crate::pod::{Pod, nft};
use crate::{ledger, running};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Break {
    /// Rules of meshed pods are flushed.
    Rules,
    /// The conflist is torn for a moment.
    Conflist,
    /// Pods that have responded are killed, so that kubelet starts them in another netns.
    Pods,
    /// A container of a pod is killed, so that kubelet starts it again in the same netns.
    Processes,
}

impl Break {
    /// Harms a pod that has just responded, if this bug is about pods.
    pub fn harm(self, pod: &Pod) {
        match (self, &pod.sandbox) {
            (Break::Rules, Some(sandbox)) if pod.is_meshed() => {
                if let Err(error) = nft(sandbox, &["flush", "ruleset"]) {
                    println!("         the rules of {} are not flushed: {error}", pod.name);
                }
            }
            (Break::Pods, Some(sandbox)) => running::kill_processes_in(&sandbox.netns),
            _ => {}
        }
    }
}

/// Seeds the bug repeatedly until `duration` has passed.
pub fn run(bug: Break, duration: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < duration {
        thread::sleep(Duration::from_secs(5));
        match bug {
            Break::Conflist => truncate_conflist_briefly(),
            Break::Processes => {
                // As for a restart of the container runtime, all processes have to survive, so the
                // killed container is a violation.
                ledger::begin_action("container killed by the soak");
                running::assert_processes_survive(running::kill_one_container);
            }
            Break::Rules | Break::Pods => {}
        }
    }
}

/// Truncates the conflist for 10 ms, as a program does that writes the file in place instead of
/// replacing it.
fn truncate_conflist_briefly() {
    ledger::begin_action("conflist torn by the soak");
    let Some(path) = active::path("") else {
        return;
    };
    let text = fs::read_to_string(&path).expect("the conflist can be read");
    fs::write(&path, &text[..text.len() / 2]).expect("the conflist can be written");
    thread::sleep(Duration::from_millis(10));
    replace(&path, "soak", text, 0o644);
}
