//! Finds the problems that changed, so that each change is logged once. Pure.

use std::collections::BTreeMap;

/// The problems that were logged last, by subject.
#[derive(Debug, Default)]
pub struct ProblemLog {
    logged: BTreeMap<String, String>,
}

/// A change to log.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// The problem is new, or its reason changed.
    Problem { subject: String, why: String },
    /// The subject has no problem any more.
    Resolved { subject: String },
}

impl ProblemLog {
    /// Returns the differences between `problems` and those of the last call, and remembers
    /// `problems`.
    pub fn update(&mut self, problems: &BTreeMap<String, String>) -> Vec<Change> {
        let logged = std::mem::replace(&mut self.logged, problems.clone());
        let resolved = logged.keys().filter(|subject| !problems.contains_key(*subject));
        let new = problems.iter().filter(|(subject, why)| logged.get(*subject) != Some(why));
        resolved
            .map(|subject| Change::Resolved { subject: subject.clone() })
            .chain(new.map(|(subject, why)| Change::Problem {
                subject: subject.clone(),
                why: why.clone(),
            }))
            .collect()
    }
}

/// The problem of one subject that was logged last.
#[derive(Debug)]
pub struct LastProblem<T>(Option<T>);

impl<T> Default for LastProblem<T> {
    fn default() -> Self {
        LastProblem(None)
    }
}

impl<T: PartialEq> LastProblem<T> {
    /// Remembers `problem`. Returns whether it differs from the last one.
    pub fn is_new(&mut self, problem: T) -> bool {
        let is_new = self.0.as_ref() != Some(&problem);
        self.0 = Some(problem);
        is_new
    }

    /// Forgets the problem. Returns whether there was one.
    pub fn resolve(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_a_problem_once_per_change_and_once_when_it_is_resolved() {
        let mut log = ProblemLog::default();
        let mut changes = |why: Option<&str>| {
            let problems = why.map(|why| ("x".to_owned(), why.to_owned()));
            log.update(&problems.into_iter().collect()).len()
        };
        let lines = [Some("a"), Some("a"), Some("b"), None, None].map(&mut changes);
        assert_eq!(lines, [1, 0, 1, 1, 0]);
        let mut last = LastProblem::default();
        let lines = [Some("a"), Some("a"), Some("b"), None, None].map(|why| match why {
            Some(why) => last.is_new(why),
            None => last.resolve(),
        });
        assert_eq!(lines, [true, false, true, true, false]);
    }
}
