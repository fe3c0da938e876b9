//! Reads the network configs and the saved state once a reconcile pass.

use std::time::Duration;

use super::settings::NodeSettings;
use crate::conflist::net_dir::{self, ConfigFile};
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;
use crate::files;

pub struct Observed {
    pub configs: Vec<ConfigFile>,
    pub saved_state: SavedState,
    /// Time since the network config that the runtime calls was changed last.
    pub changed_before: Option<Duration>,
}

pub fn observe(settings: &NodeSettings) -> Result<Observed, files::Error> {
    let dir = &settings.net_dir;
    let configs = net_dir::scan(dir, &settings.kubeconfig_name)?;
    let called = plan::called(&configs).map(|called| dir.join(&called.name));
    let changed = called.and_then(|path| files::changed_at(&path.canonicalize().ok()?));
    let changed_before = changed.and_then(|changed| changed.elapsed().ok());
    Ok(Observed { configs, saved_state: SavedState::load(dir), changed_before })
}
