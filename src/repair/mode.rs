//! What to do with a pod that runs without its rules.

use std::str::FromStr;

/// `repairController.mode` of the chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Delete it, so that its owner makes another one. Upstream's way.
    #[default]
    Delete,
    /// Put the rules into its network namespace.
    InPlace,
    /// Label it, for another controller to act on.
    Label,
    /// Only tell.
    Report,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // As with other variables, an empty one counts as unset.
            "" | "delete" => Ok(Mode::Delete),
            "in-place" => Ok(Mode::InPlace),
            "label" => Ok(Mode::Label),
            "report" => Ok(Mode::Report),
            _ => Err(format!(
                "\"{text}\" is not one of delete, in-place, label and report"
            )),
        }
    }
}
