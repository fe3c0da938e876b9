//! Registers metrics and renders them as OpenMetrics text, for the agent and the repair controller.
//!
//! `prometheus-client` adds some 30 kB to each of the two programs, and nothing to the plugin.

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// Upper bounds of a histogram's buckets, in seconds. Upstream's controller has the same.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub type Labels<const N: usize> = [(&'static str, String); N];

pub fn label(name: &'static str, value: impl ToString) -> (&'static str, String) {
    (name, value.to_string())
}

pub type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// Declares a struct with a group of metrics and their registry. The arguments are:
///
/// - the name of the struct, and the prefix of the metrics' names;
/// - in brackets, functions that register further metrics in the same registry;
/// - for each metric its name, its type, the function that registers it, the help text and, in
///   parentheses, the labels.
macro_rules! metrics {
    ($(#[$doc:meta])* $group:ident $prefix:literal [$($other:path),*]
        $($(#[$note:meta])* $name:ident: $type:ty = $register:ident $help:literal $(($labels:expr))?)*
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $group {
            pub registry: ::prometheus_client::registry::Registry,
            $($(#[$note])* pub $name: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                let mut registry = ::prometheus_client::registry::Registry::with_prefix($prefix);
                $($other(&mut registry);)*
                $(let $name = $register(&mut registry, stringify!($name), $help $(, $labels)?);)*
                $group { registry, $($name),* }
            }
        }
    };
}
pub(crate) use metrics;

/// Adds a metric to a group. A metric whose name ends with `_seconds` gets this unit. The
/// OpenMetrics text has the group's prefix before the name, `_total` behind the name of a counter,
/// and a full stop behind `help`.
fn add<M: Metric + Clone>(group: &mut Registry, name: &str, help: &str, metric: M) -> M {
    match name.strip_suffix("_seconds") {
        Some(name) => group.register_with_unit(name, help, Unit::Seconds, metric.clone()),
        None => group.register(name, help, metric.clone()),
    }
    metric
}

/// Adds a metric without labels.
pub fn register<M: Metric + Clone + Default>(group: &mut Registry, name: &str, help: &str) -> M {
    add(group, name, help, M::default())
}

/// Adds a metric with a value for each of these `labels`, so that the metric is shown before the
/// first event.
pub fn register_each<const N: usize, M: Default>(
    group: &mut Registry,
    name: &str,
    help: &str,
    labels: impl IntoIterator<Item = Labels<N>>,
) -> Family<Labels<N>, M>
where
    Family<Labels<N>, M>: Metric,
{
    let metrics = Family::<Labels<N>, M>::default();
    for labels in labels {
        drop(metrics.get_or_create(&labels));
    }
    add(group, name, help, metrics)
}

pub type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// Adds a histogram of durations with a value for each of these `labels`, like [`register_each`].
pub fn register_durations_each<const N: usize>(
    group: &mut Registry,
    name: &str,
    help: &str,
    labels: impl IntoIterator<Item = Labels<N>>,
) -> Durations<N> {
    let durations: Durations<N> = Family::new_with_constructor(|| Histogram::new(BUCKETS));
    for labels in labels {
        drop(durations.get_or_create(&labels));
    }
    add(group, name, help, durations)
}

/// Adds the gauge `build_info`, which is always 1 and has the program's version as a label.
pub fn register_build_info(group: &mut Registry) {
    let info: Family<Labels<1>, Gauge> = register(group, "build_info", "Version of the program");
    info.get_or_create(&[("version", env!("CARGO_PKG_VERSION").into())]).set(1);
}

/// Adds a histogram of durations.
pub fn register_durations(group: &mut Registry, name: &str, help: &str) -> Histogram {
    add(group, name, help, Histogram::new(BUCKETS))
}

/// Renders the metrics of all `registries`.
pub fn openmetrics<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for registry in registries {
        let _ = text::encode_registry(&mut out, registry);
    }
    let _ = text::encode_eof(&mut out);
    out
}

#[cfg(test)]
pub mod tests;
