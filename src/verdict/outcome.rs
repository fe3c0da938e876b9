//! The outcome of a report: right, wrong or unknown. Text, JSON and exit code of `linkerd cni`
//! derive from it. Pure.

/// What a report says about its subject. The variants are in ascending order of severity: wrong
/// outweighs unknown, and unknown outweighs right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Right,
    Unknown,
    Wrong,
}

impl Outcome {
    /// Returns the most severe of several outcomes. Right if there are none.
    pub fn worst(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        outcomes.into_iter().max().unwrap_or(Outcome::Right)
    }

    /// Returns the label for JSON and tables.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Right => "right",
            Outcome::Unknown => "unknown",
            Outcome::Wrong => "wrong",
        }
    }

    /// Returns the exit code of a command with this outcome.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Right => 0,
            Outcome::Wrong => 1,
            Outcome::Unknown => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_outweighs_unknown_and_unknown_outweighs_right() {
        use Outcome::{Right, Unknown, Wrong};
        for (outcomes, worst, exit_code) in [
            (vec![], Right, 0),
            (vec![Right, Right], Right, 0),
            (vec![Right, Unknown, Right], Unknown, 2),
            (vec![Unknown, Wrong, Right], Wrong, 1),
        ] {
            let found = Outcome::worst(outcomes.clone());
            assert_eq!((found, found.exit_code()), (worst, exit_code), "{outcomes:?}");
        }
    }
}
