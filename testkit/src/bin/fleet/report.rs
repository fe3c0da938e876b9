//! The results as Markdown.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::node::Memory;
use crate::phase::Phase;

/// The results of one fleet.
pub struct Run {
    pub nodes: usize,
    pub pods: usize,
    pub memory: Memory,
    /// Without agents and repair controllers.
    pub baseline: Phase,
    pub start: Phase,
    pub idle: Phase,
    pub restart: Phase,
}

impl Run {
    /// The memory of the programs, for scripts/benchmarks.
    pub fn memory_json(&self) -> Value {
        json!({
            "nodes": self.nodes,
            "pods": self.pods,
            "agent_kib": self.memory.agent_kib,
            "repair_controller_kib": self.memory.repair_controller_kib,
        })
    }

    pub fn markdown(&self) -> String {
        let mut text = format!(
            "\n## {} nodes with {} meshed pods each\n\n\
             | phase | seconds | requests | first to last, s | most in 1 s | requests per node | API server CPU, s \
             | CPU of one core | response bytes | watch bytes | watches | pod lists from etcd | pods read per list | API server MiB |\n\
             | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n",
            self.nodes, self.pods
        );
        let phases = [
            ("before the start", &self.baseline),
            ("start of all", &self.start),
            ("idle", &self.idle),
            ("API server restarted", &self.restart),
        ];
        for (name, phase) in phases {
            self.row(&mut text, name, phase);
        }
        for (name, phase) in phases {
            for ((kind, status), count) in phase.kinds() {
                let _ = writeln!(text, "- {name}: {kind}, HTTP {status}: {count}");
            }
        }
        let _ = writeln!(
            text,
            "- proportional set size: agent {} KiB, repair controller {} KiB",
            self.memory.agent_kib, self.memory.repair_controller_kib
        );
        text
    }

    fn row(&self, text: &mut String, name: &str, phase: &Phase) {
        let seconds = phase.span.as_secs_f64();
        let _ = writeln!(
            text,
            "| {name} | {seconds:.0} | {} | {:.1} | {} | {:.2} | {:.1} | {:.1}% | {:.0} | {:.0} | {} | {} | {:.0} | {:.0} |",
            phase.requests.len(),
            phase.requests_span().as_secs_f64(),
            phase.peak_per_second(),
            phase.requests.len() as f64 / self.nodes as f64,
            phase.cpu_seconds,
            100.0 * phase.cpu_seconds / seconds,
            phase.response_bytes,
            phase.watch_bytes,
            phase.watches,
            phase.etcd_pod_lists,
            phase.pods_read_per_list,
            phase.memory_bytes / 1_048_576.0,
        );
    }
}
