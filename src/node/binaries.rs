//! Compares the plugin binaries in the host's CNI bin dir with those of the image.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::NodeSettings;
use crate::files;

/// Identifies one version of a file without reading it: device, inode, size, mode and ctime. Equal
/// stamps mean that nothing wrote the file in between.
pub type Stamp = (u64, u64, u64, u32, i64, i64);

/// Remembers the copies that were compared, so that megabytes are read again only after a change.
#[derive(Debug, Default)]
pub struct Binaries {
    /// Stamps of the file in the image and on the host, by file name.
    verified: BTreeMap<String, (Stamp, Stamp)>,
}

impl Binaries {
    /// Returns the regular files in the image's bin dir. Upstream copies the same files.
    pub fn in_image(settings: &NodeSettings) -> Result<Vec<String>, files::Error> {
        let path = settings.image_bin_dir.clone();
        let mut names = files::file_names(&path)?;
        names.retain(|name| is_regular_file(&path.join(name)));
        if names.is_empty() {
            return Err(files::Error::Unusable { path, why: "has no plugin binary" });
        }
        Ok(names)
    }

    /// Returns the files among `names` that are missing on the host or differ in content or mode.
    pub fn stale(
        &mut self,
        settings: &NodeSettings,
        names: &[String],
    ) -> Result<Vec<String>, files::Error> {
        let mut stale = Vec::new();
        for name in names {
            if !self.is_current(settings, name)? {
                stale.push(name.clone());
            }
        }
        Ok(stale)
    }

    /// Returns the stamp of the file `name` in `dir`, whatever its content, if it is executable.
    pub fn executable(dir: &Path, name: &str) -> Option<Stamp> {
        Binaries::executable_at(&dir.join(name))
    }

    /// Returns the stamp of the file at `path`, whatever its content, if it is executable.
    pub fn executable_at(path: &Path) -> Option<Stamp> {
        let metadata = files::metadata(path).ok()??;
        let runs = metadata.is_file() && metadata.len() > 0 && metadata.mode() & 0o111 != 0;
        if runs { Some(stamp(&metadata)) } else { None }
    }

    /// Returns whether the file `name` on the host has the same content and mode as in the image.
    fn is_current(&mut self, settings: &NodeSettings, name: &str) -> Result<bool, files::Error> {
        let verified = self.verified.remove(name);
        let image = settings.image_bin_dir.join(name);
        let host = settings.bin_dir.join(name);
        let (Some(source), Some(copy)) = (files::metadata(&image)?, files::metadata(&host)?) else {
            return Ok(false);
        };
        if !copy.is_file() || copy.len() != source.len() || mode(&copy) != mode(&source) {
            return Ok(false);
        }
        let stamps = (stamp(&source), stamp(&copy));
        let same = verified == Some(stamps) || files::have_equal_content(&image, &host)?;
        if same {
            self.verified.insert(name.to_owned(), stamps);
        }
        Ok(same)
    }
}

fn is_regular_file(path: &Path) -> bool {
    files::metadata(path).is_ok_and(|file| file.is_some_and(|file| file.is_file()))
}

/// Returns the permission bits, including setuid, setgid and sticky.
fn mode(file: &Metadata) -> u32 {
    file.mode() & 0o7777
}

fn stamp(file: &Metadata) -> Stamp {
    (file.dev(), file.ino(), file.size(), file.mode(), file.ctime(), file.ctime_nsec())
}
