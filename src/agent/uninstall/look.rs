//! Looks whether a network config names the plugin, until none did for a while.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::conflist;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;
use crate::files;

/// Time between two looks where the kernel announces changes, as some file systems do not.
const RESYNC: Duration = Duration::from_millis(50);
/// Time between two looks where all inotify instances of the node are in use.
const POLLING: Duration = Duration::from_millis(5);

/// What a look at the CNI net dir found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No network config names the plugin.
    Unnamed,
    /// This network config has a plugin entry that [`plan::unchain`] can take out.
    Chained(PathBuf),
    /// This network config names the plugin, or may, in a way that cannot be undone here:
    /// unreadable, half written, or a copy of a conflist inside another config.
    Foreign(PathBuf),
}

/// The CNI net dir, and the changes in it from the start on.
pub struct Looks<'s> {
    dir: &'s Path,
    kubeconfig: &'s str,
    inotify: Option<Inotify>,
}

impl<'s> Looks<'s> {
    /// Watches `dir`, where the file `kubeconfig` is no network config whatever its name.
    pub fn start(dir: &'s Path, kubeconfig: &'s str) -> Looks<'s> {
        Looks {
            dir,
            kubeconfig,
            inotify: watch(dir),
        }
    }

    /// Looks until no network config named the plugin for `quiet`, and says so, or until
    /// one is [`Seen::Chained`]. [`Seen::Foreign`] may pass by itself: the answer waits
    /// for that until `end`.
    pub fn until_quiet(
        &self,
        journal: &SavedState,
        quiet: Duration,
        end: Instant,
    ) -> Result<Seen, files::Error> {
        let mut since = Instant::now();
        loop {
            let seen = self.look(journal)?;
            let now = Instant::now();
            match seen {
                Seen::Unnamed if now >= since + quiet => return Ok(seen),
                Seen::Unnamed => self.wait(since + quiet - now),
                Seen::Chained(_) => return Ok(seen),
                Seen::Foreign(_) if now >= end => return Ok(seen),
                Seen::Foreign(_) => {
                    self.wait(end - now);
                    since = Instant::now();
                }
            }
        }
    }

    /// Looks once.
    fn look(&self, journal: &SavedState) -> Result<Seen, files::Error> {
        let found = match net_dir::scan(self.dir, self.kubeconfig) {
            Err(error) if error.is_missing() => return Ok(Seen::Unnamed),
            found => found?,
        };
        let named: Vec<&ConfigFile> = found.iter().filter(|file| self.names_us(file)).collect();
        let can_unchain = plan::unchain(&found, journal, &Default::default());
        let can_unchain = |file: &&&ConfigFile| {
            let mut undos = can_unchain.iter().flatten();
            undos.any(|undo| undo.list() == file.name)
        };
        let path = |file: &ConfigFile| self.dir.join(&file.name);
        if let Some(file) = named.iter().find(can_unchain) {
            return Ok(Seen::Chained(path(file)));
        }
        let foreign = named.first().map(|file| Seen::Foreign(path(file)));
        Ok(foreign.unwrap_or(Seen::Unnamed))
    }

    /// Whether a runtime may find the plugin's name in `file`, also if this agent cannot.
    fn names_us(&self, file: &ConfigFile) -> bool {
        if let Ok(content) = &file.content {
            return conflist::may_call_plugin(&content.text);
        }
        match files::holds(&self.dir.join(&file.name), PLUGIN.as_bytes()) {
            Ok(holds) => holds,
            Err(files::Error::Unfit { .. }) => false,
            Err(error) => !error.is_missing(),
        }
    }

    /// Waits for a change in the directory, at most for `longest`.
    fn wait(&self, longest: Duration) {
        let Some(inotify) = &self.inotify else {
            return thread::sleep(longest.min(POLLING));
        };
        // Rounded up: the last fraction of a millisecond is not to be spun through.
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
