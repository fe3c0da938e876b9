//! Which of the node's network configurations carry us.

use super::net_dir::Kind;
use crate::agent::settings::{Error, Settings};

/// The file of a standalone configuration, unless told otherwise. A directory that a
/// runtime reads has its networks under names that start with a digit, so this one sorts
/// behind them; in Multus' own directory the order means nothing.
pub const STANDALONE: &str = "linkerd-cni.conf";

/// The copy's file, unless told otherwise: before all that start with two digits.
pub const COPY: &str = "00-linkerd-cni.conflist";

/// How our plugin gets to be called.
///
/// From one mode to another, also over a restart: first the new one's file is right, and
/// only then goes what the other one left. A node is never bare in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In every list, as upstream has it; the one that the runtime loads decides whether
    /// the node is ready.
    Every,
    /// In this file alone, also before it exists. A `.conf` becomes a list of its name.
    Only(String),
    /// In a configuration of our own with this name, which another plugin calls after the
    /// node's network, such as Multus on OpenShift. No other file is touched.
    ///
    /// A runtime must not find it first, or pods get no network but us: it belongs into
    /// Multus' directory, not into the one that the runtime reads.
    Standalone(String),
    /// In a copy, with this name, of the network that the runtime would load without it.
    ///
    /// The copy follows the network's own file, which is never written. While that file
    /// is there but cannot be read, as in the middle of being written, the copy stays what
    /// it was. If the file goes, so does the copy: a runtime must not be handed a network
    /// that is gone, and without us it would not be.
    Copy(String),
}

impl Mode {
    /// What the settings say. A standalone configuration has nothing to copy, so
    /// `chained: false` wins over `ownConfig`.
    pub fn of(settings: &Settings) -> Result<Mode, Error> {
        let name = settings.conf_name.clone();
        let or = |default: &str| name.clone().unwrap_or_else(|| default.to_owned());
        let mode = match (&name, settings.chained, settings.own_config) {
            (_, false, _) => Mode::Standalone(or(STANDALONE)),
            (_, true, true) => Mode::Copy(or(COPY)),
            (Some(name), true, false) => Mode::Only(name.clone()),
            (None, true, false) => Mode::Every,
        };
        let Some(name) = name else {
            return Ok(mode);
        };
        let wrong = match (&mode, Kind::of(&name)) {
            (_, None) => "ends in none of .conflist, .conf and .json, so no runtime loads it",
            (Mode::Copy(_), Some(Kind::Conf | Kind::Json)) => {
                "does not end in .conflist, as the copy of a chain must"
            }
            _ if name == settings.kubeconfig_name => "is the name of the kubeconfig",
            _ => return Ok(mode),
        };
        Err(Error::Value {
            name: "LINKERD_CNI_CONF_NAME",
            value: name,
            message: wrong.into(),
        })
    }

    /// The file that is ours as a whole, if there is one.
    pub fn own(&self) -> Option<&str> {
        match self {
            Mode::Standalone(name) | Mode::Copy(name) => Some(name),
            Mode::Every | Mode::Only(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(vars: &[(&str, &str)]) -> Result<Mode, Error> {
        let lookup = |name: &str| {
            let var = vars.iter().find(|(key, _)| key == &name);
            var.map(|(_, value)| (*value).to_owned())
        };
        Mode::of(&Settings::read(lookup, None, None)?)
    }

    const NAME: &str = "LINKERD_CNI_CONF_NAME";
    const ALONE: (&str, &str) = ("LINKERD_CNI_CHAINED", "false");
    const OWN: (&str, &str) = ("LINKERD_CNI_OWN_CONFIG", "true");

    #[test]
    fn the_settings_say_which_files_carry_us() {
        let named = |name: &'static str| (NAME, name);
        for (vars, expected) in [
            (vec![], Mode::Every),
            (
                vec![named("10-x.conflist")],
                Mode::Only("10-x.conflist".into()),
            ),
            (vec![ALONE], Mode::Standalone(STANDALONE.into())),
            (vec![ALONE, OWN], Mode::Standalone(STANDALONE.into())),
            (
                vec![ALONE, named("x.conf")],
                Mode::Standalone("x.conf".into()),
            ),
            (vec![OWN], Mode::Copy(COPY.into())),
            (
                vec![OWN, named("0.conflist")],
                Mode::Copy("0.conflist".into()),
            ),
        ] {
            assert_eq!(mode(&vars), Ok(expected), "{vars:?}");
        }
    }

    #[test]
    fn a_name_that_cannot_serve_is_refused_with_the_reason() {
        for (vars, reason) in [
            (vec![(NAME, "10-calico")], "ends in none of"),
            (vec![(NAME, "10-calico.bak"), ALONE], "ends in none of"),
            (vec![(NAME, "00-x.conf"), OWN], "does not end in .conflist"),
            (
                vec![(NAME, "k.json"), ("KUBECONFIG_FILE_NAME", "k.json")],
                "the name of the kubeconfig",
            ),
        ] {
            let error = mode(&vars).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
