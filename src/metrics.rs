//! The OpenMetrics text format of `/metrics` of the agent and the repair controller.

use std::fmt::Write as _;

/// Appends the head of the metric family `name`: help, type, and the unit if the name ends in one.
/// `kind` is the type: `counter`, `gauge` or `histogram`. `help` has no full stop at its end.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}.");
    let _ = writeln!(out, "# TYPE {name} {kind}");
    for unit in ["seconds", "bytes"] {
        if name.ends_with(&format!("_{unit}")) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
    }
}
