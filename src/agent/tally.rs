//! Counts the plugin's records for `/metrics`. The set of label values is fixed, because any
//! process that can write to the socket can send records.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::ignored::SOURCES;
use crate::firewall::Backend;
use crate::record::{Command, Decision, Record};

/// Values of the label `command`.
const COMMANDS: [&str; 2] = ["ADD", "CHECK"];
/// Values of the label `result`.
const RESULTS: [&str; 5] = ["redirected", "checked", "simulated", "failed", "passed"];
/// Values of the label `code`: CNI error codes of the plugin's ADD and CHECK. Any other code counts
/// as `other`, in a last counter.
const CODES: [u32; 15] = [1, 4, 5, 6, 7, 8, 100, 101, 102, 103, 104, 110, 120, 121, 122];

/// All counters over plugin records.
#[derive(Debug, Default)]
pub struct Tally {
    requests: [[AtomicU64; RESULTS.len()]; COMMANDS.len()],
    milliseconds: [AtomicU64; COMMANDS.len()],
    backends: [AtomicU64; Backend::ALL.len()],
    failures: [AtomicU64; CODES.len() + 1],
    ignored: [AtomicU64; SOURCES.len()],
    rejected: AtomicU64,
}

impl Tally {
    /// Counts a record.
    pub fn count(&self, record: &Record) {
        let command = match record.command {
            Command::Add => 0,
            Command::Check => 1,
        };
        let result = match record.decision {
            Decision::Redirected => 0,
            Decision::Checked => 1,
            Decision::Simulated => 2,
            Decision::Failed => 3,
            Decision::Skipped(_) => 4,
        };
        add(&self.requests[command][result], 1);
        add(&self.milliseconds[command], record.ms);
        if let Some(backend) = record.backend {
            let index = Backend::ALL.iter().position(|known| *known == backend);
            add(&self.backends[index.unwrap_or_default()], 1);
        }
        if let Some(error) = &record.error {
            let code = CODES.iter().position(|code| *code == error.code);
            add(&self.failures[code.unwrap_or(CODES.len())], 1);
        }
        for list in &record.ignored {
            self.ignore(list.source);
        }
    }

    /// Counts a port list with ignored elements.
    fn ignore(&self, source: &str) {
        if let Some(index) = SOURCES.iter().position(|name| *name == source) {
            add(&self.ignored[index], 1);
        }
    }

    /// Counts a datagram that is not a valid record.
    pub fn reject(&self) {
        add(&self.rejected, 1);
    }

    /// Appends the counters in the OpenMetrics text format.
    pub fn write(&self, text: &mut String) {
        head(text, "requests", "Calls of the plugin, by what came of them");
        for (command, results) in COMMANDS.iter().zip(&self.requests) {
            for (result, counter) in RESULTS.iter().zip(results) {
                let labels = format!("command=\"{command}\",result=\"{result}\"");
                sample(text, "requests", &labels, counter);
            }
        }
        head(text, "milliseconds", "Time that calls of the plugin took");
        for (command, counter) in COMMANDS.iter().zip(&self.milliseconds) {
            sample(text, "milliseconds", &format!("command=\"{command}\""), counter);
        }
        head(text, "redirects", "Pods redirected, by what made the rules");
        for (backend, counter) in Backend::ALL.iter().zip(&self.backends) {
            sample(text, "redirects", &format!("backend=\"{backend}\""), counter);
        }
        head(text, "failures", "Calls of the plugin that failed, by its error's code");
        let codes = CODES.iter().map(u32::to_string).chain(["other".into()]);
        for (code, counter) in codes.zip(&self.failures) {
            sample(text, "failures", &format!("code=\"{code}\""), counter);
        }
        head(
            text,
            "ignored_ports",
            "Port lists with elements that have no effect, by annotation or key of the plugin entry",
        );
        for (source, counter) in SOURCES.iter().zip(&self.ignored) {
            sample(text, "ignored_ports", &format!("source=\"{source}\""), counter);
        }
        head(text, "refused_records", "Datagrams that were no records");
        sample(text, "refused_records", "", &self.rejected);
    }
}

/// Adds without overflow: a record may report any number of milliseconds.
fn add(counter: &AtomicU64, amount: u64) {
    let _ = counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_add(amount)));
}

/// Appends the description of a metric. Writing to a String cannot fail.
fn head(text: &mut String, name: &str, help: &str) {
    let _ = write!(
        text,
        "# HELP linkerd_cni_plugin_{name} {help}.\n# TYPE linkerd_cni_plugin_{name} counter\n"
    );
}

/// Appends one sample.
fn sample(text: &mut String, name: &str, labels: &str, counter: &AtomicU64) {
    let value = counter.load(Ordering::Relaxed);
    let labels = match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    };
    let _ = writeln!(text, "linkerd_cni_plugin_{name}_total{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_add_no_label_values() {
        let tally = Tally::default();
        let before = {
            let mut text = String::new();
            tally.write(&mut text);
            text.lines().count()
        };
        for (decision, code) in [("redirected", 101), ("it has no proxy", 77), ("x", 12345)] {
            let record = format!(
                r#"{{"level":"info","command":"ADD","namespace":"n","pod":"p","container_id":"c",
                "decision":"{decision}","backend":"nft","requests":1,"ms":18446744073709551615,
                "error":{{"code":{code},"msg":""}},
                "ignored":[{{"source":"config.linkerd.io/skip-inbound-ports","elements":["x","y"]}},
                    {{"source":"{decision}","elements":[]}}]}}"#
            );
            tally.count(&Record::parse(record.as_bytes()).unwrap());
        }
        tally.reject();
        let mut text = String::new();
        tally.write(&mut text);
        assert_eq!(text.lines().count(), before);
        for line in [
            r#"linkerd_cni_plugin_requests_total{command="ADD",result="redirected"} 1"#,
            r#"linkerd_cni_plugin_requests_total{command="ADD",result="passed"} 2"#,
            r#"linkerd_cni_plugin_redirects_total{backend="nft"} 3"#,
            r#"linkerd_cni_plugin_failures_total{code="101"} 1"#,
            r#"linkerd_cni_plugin_failures_total{code="other"} 2"#,
            r#"linkerd_cni_plugin_ignored_ports_total{source="config.linkerd.io/skip-inbound-ports"} 3"#,
            r#"linkerd_cni_plugin_ignored_ports_total{source="outbound-ports-to-ignore"} 0"#,
            "linkerd_cni_plugin_refused_records_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
