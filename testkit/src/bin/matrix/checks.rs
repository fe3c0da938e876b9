//! Results of the checks of a row.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

/// The checks of a row, in order. The results are written to a file after each check, because the
/// job of a row may be killed.
pub struct Checks {
    file: PathBuf,
    versions: Value,
    done: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    passed: bool,
    seen: String,
    seconds: f64,
}

impl Checks {
    pub fn new(file: PathBuf, versions: Value) -> Checks {
        let checks = Checks { file, versions, done: Vec::new() };
        checks.write();
        checks
    }

    fn write(&self) {
        let result = json!({"versions": self.versions, "checks": self.done});
        fs::write(&self.file, result.to_string()).expect("the file for the results can be written");
    }

    /// Runs a check, and returns whether it passed. `check` panics if it fails. Otherwise it
    /// returns a text about what it has seen.
    pub fn run(&mut self, name: &'static str, check: impl FnOnce() -> String) -> bool {
        println!("== {name}");
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(check));
        let seconds = begin.elapsed().as_secs_f64();
        let passed = result.is_ok();
        let seen = result.unwrap_or_else(|panic| testkit::panic_message(&*panic));
        println!("{} {name} ({seconds:.1} s): {seen}", if passed { "ok    " } else { "FAILED" });
        self.done.push(Check { name, passed, seen, seconds: (seconds * 10.0).round() / 10.0 });
        self.write();
        passed
    }

    pub fn all_passed(&self) -> bool {
        !self.done.is_empty() && self.done.iter().all(|check| check.passed)
    }
}
