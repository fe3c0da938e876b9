//! What was said about what is wrong, so that each change is one log line. Pure.

use std::collections::BTreeMap;

/// What was said last, by subject.
#[derive(Debug, Default)]
pub struct Notes {
    said: BTreeMap<String, String>,
}

/// What is to be said now.
#[derive(Debug, PartialEq, Eq)]
pub enum Note {
    Wrong { subject: String, why: String },
    RightAgain { subject: String },
}

impl Notes {
    /// What changed since the last time.
    pub fn changes(&mut self, problems: &BTreeMap<String, String>) -> Vec<Note> {
        let said = std::mem::replace(&mut self.said, problems.clone());
        let gone = said
            .keys()
            .filter(|subject| !problems.contains_key(*subject));
        let new = problems
            .iter()
            .filter(|(subject, why)| said.get(*subject) != Some(why));
        gone.map(|subject| Note::RightAgain {
            subject: subject.clone(),
        })
        .chain(new.map(|(subject, why)| Note::Wrong {
            subject: subject.clone(),
            why: why.clone(),
        }))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_said_once_a_change_and_once_when_it_is_gone() {
        let mut notes = Notes::default();
        let mut say = |why: Option<&str>| {
            let problems = why.map(|why| ("x".to_owned(), why.to_owned()));
            notes.changes(&problems.into_iter().collect()).len()
        };
        let lines = [Some("a"), Some("a"), Some("b"), None, None].map(&mut say);
        assert_eq!(lines, [1, 0, 1, 1, 0]);
    }
}
