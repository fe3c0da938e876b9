//! Logs each change of the problems once.

use std::collections::BTreeMap;

use tracing::{info, warn};

/// The problems that were logged last, by subject.
#[derive(Debug, Default)]
pub struct ProblemLog {
    logged: BTreeMap<String, String>,
}

impl ProblemLog {
    /// Logs the differences between `problems` and those of the last call. Returns whether there
    /// are any.
    pub fn update(&mut self, problems: BTreeMap<String, String>) -> bool {
        let logged = std::mem::replace(&mut self.logged, problems);
        for subject in logged.keys().filter(|subject| !self.logged.contains_key(*subject)) {
            info!("{subject}: resolved");
        }
        for (subject, why) in &self.logged {
            if logged.get(subject) != Some(why) {
                warn!("{subject}: {why}");
            }
        }
        logged != self.logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_when_it_appears_changes_and_is_resolved() {
        let mut log = ProblemLog::default();
        let changes = [Some("a"), Some("a"), Some("b"), None, None].map(|why: Option<&str>| {
            let problems = why.map(|why| ("x".to_owned(), why.to_owned()));
            log.update(problems.into_iter().collect())
        });
        assert_eq!(changes, [true, false, true, true, false]);
    }
}
