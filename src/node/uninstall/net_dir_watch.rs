//! Waits until no network config in the CNI net dir has named the plugin for a while.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::conflist::net_dir;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;
use crate::files;

/// Time between two scans while inotify reports changes. Some file systems report none, so scans
/// are also periodic.
const RESYNC: Duration = Duration::from_millis(50);
/// Time between two scans without inotify, as when all inotify instances of the node are in use.
const POLLING: Duration = Duration::from_millis(5);

/// Whether a network config in the CNI net dir names the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginReference {
    /// No network config names the plugin.
    Missing,
    /// This network config has a plugin entry that [`plan::unchain`] can remove.
    Removable(PathBuf),
    /// This network config names the plugin, or may name it, in a way that this agent cannot undo.
    /// It is unreadable, half written, or has a copy of a conflist inside another config.
    Foreign(PathBuf),
}

/// Watches the CNI net dir for changes.
pub struct NetDirWatch<'s> {
    dir: &'s Path,
    kubeconfig: &'s str,
    inotify: Option<Inotify>,
}

impl<'s> NetDirWatch<'s> {
    /// Starts to watch `dir`. The file named `kubeconfig` is ignored.
    pub fn start(dir: &'s Path, kubeconfig: &'s str) -> NetDirWatch<'s> {
        NetDirWatch { dir, kubeconfig, inotify: watch(dir) }
    }

    /// Waits until no network config has named the plugin for `quiet`, and returns
    /// [`PluginReference::Missing`]. Returns [`PluginReference::Removable`] as soon as it occurs.
    /// [`PluginReference::Foreign`] may end without this agent, so it is returned only at `end`.
    pub fn until_quiet(
        &self,
        saved_state: &SavedState,
        quiet: Duration,
        end: Instant,
    ) -> Result<PluginReference, files::Error> {
        let mut since = Instant::now();
        loop {
            let reference = self.scan(saved_state)?;
            let now = Instant::now();
            match reference {
                PluginReference::Missing if now >= since + quiet => return Ok(reference),
                PluginReference::Missing => self.wait(since + quiet - now),
                PluginReference::Removable(_) => return Ok(reference),
                PluginReference::Foreign(_) if now >= end => return Ok(reference),
                PluginReference::Foreign(_) => {
                    self.wait(end - now);
                    since = Instant::now();
                }
            }
        }
    }

    /// Scans the directory once.
    fn scan(&self, saved_state: &SavedState) -> Result<PluginReference, files::Error> {
        let found = match net_dir::scan(self.dir, self.kubeconfig) {
            Err(error) if error.is_missing() => return Ok(PluginReference::Missing),
            found => found?,
        };
        let named: Vec<&ConfigFile> =
            found.iter().filter(|file| net_dir::may_name_plugin(self.dir, file)).collect();
        let steps = plan::unchain(&found, saved_state, &Default::default());
        let can_unchain = |file: &&&ConfigFile| {
            let mut steps = steps.iter().flatten();
            steps.any(|step| step.file_name() == file.name)
        };
        let path = |file: &ConfigFile| self.dir.join(&file.name);
        if let Some(file) = named.iter().find(can_unchain) {
            return Ok(PluginReference::Removable(path(file)));
        }
        let foreign = named.first().map(|file| PluginReference::Foreign(path(file)));
        Ok(foreign.unwrap_or(PluginReference::Missing))
    }

    /// Waits for a change in the directory, for at most `longest`.
    fn wait(&self, longest: Duration) {
        let Some(inotify) = &self.inotify else {
            return thread::sleep(longest.min(POLLING));
        };
        // Rounded up to whole milliseconds: poll would return at once for a fraction of one, and
        // the loop would spin.
        let longest = longest.min(RESYNC) + Duration::from_micros(999);
        let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(0) => {}
            Ok(_) => while inotify.read_events().is_ok_and(|events| !events.is_empty()) {},
            Err(_) => thread::sleep(POLLING),
        }
    }
}

/// Watches `dir` with inotify; `None` if that is not possible.
fn watch(dir: &Path) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(dir, events).ok()?;
    Some(inotify)
}
