//! Metrics of this process from `/proc`, with the names that Prometheus client libraries
//! and upstream's controller use.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Metrics of this process. Those that cannot be read are left out.
#[derive(Debug)]
pub struct ProcessMetrics {
    /// Start time of the process.
    pub started: SystemTime,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").map(|files| files.count());
        let usage = parse_stat(
            &stat,
            system_constant(SysconfVar::CLK_TCK),
            system_constant(SysconfVar::PAGE_SIZE),
        );
        let usage = usage.as_ref();
        for (name, unit, help, value) in [
            (
                "process_virtual_memory",
                Some(Unit::Bytes),
                "Virtual memory size.",
                usage.map(|usage| usage.virtual_memory),
            ),
            (
                "process_resident_memory",
                Some(Unit::Bytes),
                "Resident memory size.",
                usage.map(|usage| usage.resident_memory),
            ),
            ("process_threads", None, "Number of threads.", usage.map(|usage| usage.threads)),
            (
                "process_open_fds",
                None,
                "Number of open file descriptors.",
                // One descriptor is of the directory listing itself.
                files.ok().map(|files| files.saturating_sub(1) as u64),
            ),
            (
                "process_max_fds",
                None,
                "Maximum number of open file descriptors.",
                soft_limit_of_open_files(&limits),
            ),
        ] {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let unit = unit.as_ref();
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)?;
        }
        let gauge = ConstGauge::new(started.as_secs_f64());
        gauge.encode(encoder.encode_descriptor(
            "process_start_time",
            "Start time of the process, as Unix time.",
            Some(&Unit::Seconds),
            gauge.metric_type(),
        )?)?;
        let Some(usage) = usage else { return Ok(()) };
        let counter = ConstCounter::new(usage.cpu_seconds);
        counter.encode(encoder.encode_descriptor(
            "process_cpu",
            "CPU time in user and kernel mode.",
            Some(&Unit::Seconds),
            counter.metric_type(),
        )?)
    }
}

/// Resource usage; memory in bytes.
#[derive(Debug, PartialEq)]
struct Usage {
    /// CPU time in user and kernel mode.
    cpu_seconds: f64,
    threads: u64,
    virtual_memory: u64,
    resident_memory: u64,
}

/// Returns a positive `sysconf` value, or 0 if it is unknown.
fn system_constant(name: SysconfVar) -> u64 {
    let value = sysconf(name).ok().flatten();
    value.and_then(|value| value.try_into().ok()).unwrap_or(0)
}

/// Parses `/proc/self/stat`, whose times are in clock ticks and whose resident memory is in
/// pages.
fn parse_stat(stat: &str, ticks_per_second: u64, page_bytes: u64) -> Option<Usage> {
    // The program's name, in parentheses, may contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let field = |number: usize| -> Option<u64> {
        // proc(5) counts fields from 1; the first field after the name is the third.
        after_name.split_whitespace().nth(number - 3)?.parse().ok()
    };
    Some(Usage {
        cpu_seconds: (field(14)? + field(15)?) as f64 / ticks_per_second.max(1) as f64,
        threads: field(20)?,
        virtual_memory: field(23)?,
        resident_memory: field(24)? * page_bytes,
    })
}

/// Returns the soft limit of open files from `/proc/self/limits`. `None`: unlimited or unknown.
fn soft_limit_of_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::metrics::openmetrics;

    #[test]
    fn spaces_and_parentheses_in_the_program_name_are_skipped() {
        let stat =
            "7 (a ) b) S 1 7 7 0 -1 4194560 162 0 0 0 150 50 0 0 20 0 4 0 123 4096000 1000 1";
        let expected = Usage {
            cpu_seconds: 2.0,
            threads: 4,
            virtual_memory: 4_096_000,
            resident_memory: 4_096_000,
        };
        assert_eq!(parse_stat(stat, 100, 4096), Some(expected));
        assert_eq!(parse_stat("", 100, 4096), None);
        assert_eq!(parse_stat("7 (a) S 1", 100, 4096), None);
    }

    #[test]
    fn the_soft_limit_of_open_files_is_reported() {
        let limits =
            "Limit        Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        assert_eq!(soft_limit_of_open_files(limits), Some(1024));
        assert_eq!(soft_limit_of_open_files("Max open files  unlimited  unlimited  files\n"), None);
    }

    #[test]
    fn the_metrics_have_upstreams_names() {
        let started = UNIX_EPOCH + Duration::from_millis(1_767_225_600_250);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessMetrics { started }));
        let out = openmetrics(&registry);
        assert!(
            out.contains(
                "# HELP process_start_time_seconds Start time of the process, as Unix time.\n\
                 # TYPE process_start_time_seconds gauge\n\
                 # UNIT process_start_time_seconds seconds\n\
                 process_start_time_seconds 1767225600.25\n"
            ),
            "{out}"
        );
        for name in [
            "cpu_seconds_total",
            "max_fds",
            "open_fds",
            "resident_memory_bytes",
            "start_time_seconds",
            "threads",
            "virtual_memory_bytes",
        ] {
            assert!(out.contains(&format!("\nprocess_{name} ")), "{name}: {out}");
        }
    }
}
