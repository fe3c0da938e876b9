//! The programs on the host: copies of those in the image.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::settings::Settings;
use crate::files;

/// What tells that a file was not written since: device, inode, size, both times, mode.
pub type Stamp = (u64, u64, u64, (i64, i64), (i64, i64), u32);

/// The copies that were compared, so that megabytes are only read after a change.
#[derive(Debug, Default)]
pub struct Binaries {
    verified: BTreeMap<String, (Stamp, Stamp)>,
}

impl Binaries {
    /// Names the regular files of the image, as upstream copies them.
    pub fn wanted(settings: &Settings) -> Result<Vec<String>, files::Error> {
        let mut wanted = Vec::new();
        for name in files::names(&settings.image_bin_dir)? {
            let there = files::look(&settings.image_bin_dir.join(&name))?;
            if there.is_some_and(|metadata| metadata.is_file()) {
                wanted.push(name);
            }
        }
        if wanted.is_empty() {
            return Err(files::Error::Unfit {
                path: settings.image_bin_dir.clone(),
                what: "has no programs in it",
            });
        }
        Ok(wanted)
    }

    /// Names those of the `wanted` that are not on the host as they should be.
    pub fn wrong(
        &mut self,
        settings: &Settings,
        wanted: &[String],
    ) -> Result<Vec<String>, files::Error> {
        let mut wrong = Vec::new();
        for name in wanted {
            if !self.is_right(settings, name)? {
                self.verified.remove(name);
                wrong.push(name.clone());
            }
        }
        Ok(wrong)
    }

    /// What tells the program `name` on the host from any other, if it is right.
    pub fn verified(&self, name: &str) -> Option<Stamp> {
        self.verified.get(name).map(|(_, copy)| *copy)
    }

    fn is_right(&mut self, settings: &Settings, name: &str) -> Result<bool, files::Error> {
        let image = settings.image_bin_dir.join(name);
        let host = settings.bin_dir.join(name);
        let (Some(source), Some(copy)) = (files::look(&image)?, files::look(&host)?) else {
            return Ok(false);
        };
        let mode = |metadata: &std::fs::Metadata| metadata.mode() & 0o7777;
        if !copy.is_file() || copy.len() != source.len() || mode(&copy) != mode(&source) {
            return Ok(false);
        }
        let stamps = (stamp(&source), stamp(&copy));
        if self.verified.get(name) == Some(&stamps) {
            return Ok(true);
        }
        let same = files::same(&image, &host)?;
        if same {
            self.verified.insert(name.to_owned(), stamps);
        }
        Ok(same)
    }

    /// Copies `name` to the host, and says where it is now.
    pub fn copy(settings: &Settings, name: &str) -> Result<PathBuf, files::Error> {
        let to = settings.bin_dir.join(name);
        files::copy(&settings.image_bin_dir.join(name), &to)?;
        Ok(to)
    }
}

fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        (metadata.mtime(), metadata.mtime_nsec()),
        (metadata.ctime(), metadata.ctime_nsec()),
        metadata.mode(),
    )
}
