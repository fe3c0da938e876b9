//! Which of the node's network configurations carry us.

use super::net_dir::Kind;

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
    /// Chooses the mode for the settings `chained` and `own_config`, and the file name
    /// `conf_name`, if one is set. A standalone configuration has nothing to copy, so
    /// `chained: false` wins over `own_config`.
    ///
    /// # Errors
    /// Says why `conf_name` cannot be the name of that mode's file.
    pub fn choose(
        conf_name: Option<&str>,
        chained: bool,
        own_config: bool,
        kubeconfig_name: &str,
    ) -> Result<Mode, &'static str> {
        let or = |default: &str| conf_name.unwrap_or(default).to_owned();
        let mode = match (conf_name, chained, own_config) {
            (_, false, _) => Mode::Standalone(or(STANDALONE)),
            (_, true, true) => Mode::Copy(or(COPY)),
            (Some(name), true, false) => Mode::Only(name.to_owned()),
            (None, true, false) => Mode::Every,
        };
        let Some(name) = conf_name else {
            return Ok(mode);
        };
        match (&mode, Kind::of(name)) {
            (_, None) => Err("ends in none of .conflist, .conf and .json, so no runtime loads it"),
            (Mode::Copy(_), Some(Kind::Conf | Kind::Json)) => {
                Err("does not end in .conflist, as the copy of a chain must")
            }
            _ if name == kubeconfig_name => Err("is the name of the kubeconfig"),
            _ => Ok(mode),
        }
    }

    /// The file that is ours as a whole, if there is one.
    pub fn own(&self) -> Option<&str> {
        match self {
            Mode::Standalone(name) | Mode::Copy(name) => Some(name),
            Mode::Every | Mode::Only(_) => None,
        }
    }
}
