//! Results of the checks of a row.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde::Serialize;

/// The checks of a row, in the order in which they ran.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub struct Checks(Vec<Check>);

/// One check.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    passed: bool,
    /// What was seen, or the message of the failed assertion.
    seen: String,
    seconds: f64,
}

impl Checks {
    /// Runs a check, which panics if it fails and returns what it saw. Returns whether it passed.
    pub fn run(&mut self, name: &'static str, check: impl FnOnce() -> String) -> bool {
        println!("== {name}");
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(check));
        let seconds = begin.elapsed().as_secs_f64();
        let passed = result.is_ok();
        let seen = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "panicked without a message".to_owned())
        });
        println!("{} {name} ({seconds:.1} s): {seen}", if passed { "ok    " } else { "FAILED" });
        self.0.push(Check { name, passed, seen, seconds: (seconds * 10.0).round() / 10.0 });
        passed
    }

    /// Whether there was a check, and none failed.
    pub fn all_passed(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|check| check.passed)
    }
}
