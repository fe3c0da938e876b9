//! Measures how long an agent takes to restore a file, on this machine and while a test runs.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::child::must;
use crate::repeated::Repeated;

/// Time between two measurements.
const PAUSE: Duration = Duration::from_millis(20);

pub struct RestoreTime(Repeated<Measured>);

struct Measured {
    directory: TempDir,
    longest: Duration,
}

impl RestoreTime {
    /// Starts to restore a file again and again. The directory is on the disk of the CNI
    /// directories.
    pub fn start() -> RestoreTime {
        let directory = TempDir::new_in("/var/tmp").unwrap();
        let measured = Measured { directory, longest: Duration::ZERO };
        RestoreTime(Repeated::start(PAUSE, measured, Measured::restore))
    }

    /// Returns the longest time for one file.
    pub fn finish(self) -> Duration {
        self.0.finish().longest
    }
}

impl Measured {
    /// Does what an agent does to restore a plugin binary: writes and syncs a temporary file,
    /// starts a program, renames the file and syncs its directory.
    fn restore(&mut self) {
        let begin = Instant::now();
        let directory = self.directory.path();
        let temporary = directory.join("temporary");
        fs::write(&temporary, [0; 4096]).unwrap();
        File::open(&temporary).unwrap().sync_all().unwrap();
        must(&mut Command::new("true"));
        fs::rename(&temporary, directory.join("file")).unwrap();
        File::open(directory).unwrap().sync_all().unwrap();
        self.longest = self.longest.max(begin.elapsed());
    }
}
