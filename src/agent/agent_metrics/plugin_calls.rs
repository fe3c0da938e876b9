//! Counts the plugin's records for `/metrics`. The set of label values is fixed: any process that
//! can write to the socket can send records, and new label values would cost memory without a
//! bound.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;

use crate::agent::status_body::PluginCounts;
use crate::cni::Command;
use crate::config::ignored_ports::sources;
use crate::failure::{self, Failure};
use crate::metrics::{
    Counters, Durations, Labels, label, metrics, register, register_durations_each, register_each,
};
use crate::pod::skip::SkipReason;
use crate::record::{CallResult, Record, Source};
use crate::redirect::backend_order::Backend;

const COMMANDS: [Command; 2] = [Command::Add, Command::Check];
const RESULTS: [&str; 4] = ["redirected", "checked", "failed", "skipped"];
/// Value of the labels `code` and `reason` for a code or reason that this version does not know.
const OTHER: &str = "other";
/// Value of the label `source` for calls that were decided without any of the sources.
const NO_SOURCE: &str = "none";

metrics! {
    /// Metrics of the plugin's calls, from its records. Each metric has all its label values from
    /// the start.
    PluginCalls "linkerd_cni_plugin" []
    requests: Counters<2> = register_each "Plugin calls, by result" (
        COMMANDS.iter().flat_map(|command| RESULTS.map(|result| call_labels(*command, result)))
    )
    request_duration_seconds: Durations<2> = register_durations_each
        "Duration of plugin calls, by the source that decided on the pod"
        (COMMANDS.into_iter().flat_map(|command| {
            source_labels().map(move |source| [label("command", command), source])
        }))
    skips: Counters<1> = register_each "Pods that the plugin did not redirect, by reason" (
        SkipReason::ALL.iter().map(|reason| reason.label()).chain([OTHER])
            .map(|reason| [label("reason", reason)])
    )
    api_requests: Counter = register "Requests of the plugin to the API server"
    api_retries: Counter = register
        "Requests of the plugin to the API server that repeated a failed one"
    redirects: Counters<1> = register_each "Redirected pods, by backend" (backend_labels())
    failures: Counters<2> = register_each "Failed plugin calls, by CNI error code" (failure_labels())
    degraded: Counters<1> = register_each
        "Pods redirected by annotations and plugin entry alone, because the API server or the credential failed, by CNI error code"
        (code_labels(Failure::is_outage))
    ignored_ports: Counters<1> = register_each
        "Lists of ports and interfaces with ignored elements, by annotation or key of the plugin entry"
        (sources().map(|source| [label("source", source)]))
    pods_with_blocked_init_containers: Counter = register
        "Redirected pods with init containers that start before the proxy, so that their connections are refused"
    unproven_checks: Counter = register
        "CHECKs that could not prove whether redirect rules are missing, and succeeded"
}

impl PluginCalls {
    pub fn count(&self, record: &Record) {
        let command = record.command;
        let result = match &record.result {
            CallResult::Skipped(text) => {
                self.skips.get_or_create(&[skip_reason(text)]).inc();
                "skipped".into()
            }
            result => result.to_string(),
        };
        self.requests.get_or_create(&call_labels(command, &result)).inc();
        let seconds = record.ms as f64 / 1000.0;
        self.request_duration_seconds
            .get_or_create(&[label("command", command), source_label(record.source)])
            .observe(seconds);
        self.api_requests.inc_by(record.requests.into());
        self.api_retries.inc_by(record.retries.into());
        if !record.blocked_names().is_empty() {
            self.pods_with_blocked_init_containers.inc();
        }
        if let Some(backend) = record.backend {
            self.redirects.get_or_create(&[label("backend", backend)]).inc();
        }
        if let Some(error) = &record.error {
            let code = code_label(has_own_code, error.code);
            self.failures.get_or_create(&[label("command", command), code]).inc();
        }
        if let Some(error) = &record.degraded {
            if command == Command::Add {
                let code = code_label(Failure::is_outage, error.code);
                self.degraded.get_or_create(&[code]).inc();
            } else {
                self.unproven_checks.inc();
            }
        }
        for list in &record.ignored {
            self.ignored_ports.get_or_create(&[label("source", list.source)]).inc();
        }
    }

    /// Returns the counters above zero, for `/status`. Leaves out the failures for pods that were
    /// deleted while they started, because nothing is wrong then.
    pub fn counts(&self) -> PluginCounts {
        let mut failures = nonzero(&self.failures, failure_labels());
        failures.remove(&Failure::PodNotFound.code().to_string());
        PluginCounts {
            redirects: nonzero(&self.redirects, backend_labels()),
            failures,
            degraded: nonzero(&self.degraded, code_labels(Failure::is_outage)),
        }
    }
}

/// Returns the counters above zero, by the value of their last label.
fn nonzero<const N: usize>(
    counters: &Counters<N>,
    all: impl IntoIterator<Item = Labels<N>>,
) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for labels in all {
        let count = counters.get_or_create(&labels).get();
        if let [.., (_, value)] = &labels[..]
            && count > 0
        {
            *counts.entry(value.clone()).or_default() += count;
        }
    }
    counts
}

fn backend_labels() -> [Labels<1>; Backend::ALL.len()] {
    Backend::ALL.map(|backend| [label("backend", backend)])
}

/// Returns whether failures of this kind are counted under their own code, not under [`OTHER`].
fn has_own_code(failure: Failure) -> bool {
    failure != Failure::Internal
}

/// Returns every value of the label `code`: the codes of the failures for which `has_label` returns
/// true, and [`OTHER`].
fn code_labels(has_label: fn(Failure) -> bool) -> Vec<Labels<1>> {
    let mut labels = Vec::new();
    for code in failure::codes(has_label) {
        labels.push([label("code", code)]);
    }
    labels.push([label("code", OTHER)]);
    labels
}

/// Returns the label for `code`, which has one of the values of [`code_labels`].
fn code_label(has_label: fn(Failure) -> bool, code: u32) -> (&'static str, String) {
    if failure::codes(has_label).contains(&code) {
        label("code", code)
    } else {
        label("code", OTHER)
    }
}

fn failure_labels() -> Vec<Labels<2>> {
    let mut labels = Vec::new();
    for command in COMMANDS {
        for [code] in code_labels(has_own_code) {
            labels.push([label("command", command), code]);
        }
    }
    labels
}

fn source_labels() -> impl Iterator<Item = (&'static str, String)> {
    Source::ALL.into_iter().map(Some).chain([None]).map(source_label)
}

fn skip_reason(text: &str) -> (&'static str, String) {
    for reason in SkipReason::ALL {
        if reason.text() == text {
            return label("reason", reason.label());
        }
    }
    label("reason", OTHER)
}

fn source_label(source: Option<Source>) -> (&'static str, String) {
    ("source", source.map_or_else(|| NO_SOURCE.into(), |source| source.to_string()))
}

fn call_labels(command: Command, result: &str) -> Labels<2> {
    [label("command", command), label("result", result)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::openmetrics;

    #[test]
    fn each_record_is_counted_without_a_new_label_value() {
        let counters = PluginCalls::default();
        let before = openmetrics([&counters.registry]).lines().count();
        const CALLS: &str = include_str!("plugin_calls.yaml");
        for (_name, record) in testkit::table::rows_of::<serde_json::Value>(CALLS, "records") {
            counters.count(&Record::parse(record.to_string().as_bytes()).unwrap());
        }
        let tables = testkit::chart::yaml(CALLS);
        let failures = BTreeMap::from([("101".into(), 1), ("other".into(), 2)]);
        let counts = PluginCounts {
            redirects: BTreeMap::from([("nft".into(), 3)]),
            failures: failures.clone(),
            degraded: failures,
        };
        assert_eq!(counters.counts(), counts);
        let text = openmetrics([&counters.registry]);
        assert_eq!(text.lines().count(), before);
        for line in tables["metrics"].as_array().unwrap() {
            assert!(text.lines().any(|found| line == found), "{line} in {text}");
        }
        counters.count(&Record::parse(tables["deleted_pod"].to_string().as_bytes()).unwrap());
        assert_eq!(counters.counts(), counts);
    }
}
