//! Compares the plugin binaries in the host's CNI bin dir with those of the image.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::NodeSettings;
use crate::files;

/// Identifies one version of a file by its metadata, without reading its content. If the stamps at
/// two times are equal, nothing has written the file in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    mode: u32,
    ctime: i64,
    ctime_nanoseconds: i64,
}

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            mode: file.mode(),
            ctime: file.ctime(),
            ctime_nanoseconds: file.ctime_nsec(),
        }
    }
}

/// Compares the binaries on the host with those of the image. Remembers which of them were equal,
/// so that the files, which have megabytes, are read again only after a change.
#[derive(Debug, Default)]
pub struct Binaries {
    /// Stamps of the file in the image and on the host when their contents were equal, by file
    /// name.
    verified: BTreeMap<String, (Stamp, Stamp)>,
}

impl Binaries {
    /// Returns the names of the regular files in the image's bin dir, which are to be installed.
    /// Upstream copies the same files.
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

    /// Returns the stamp of the file at `path` if the file is executable. Its content does not
    /// matter.
    pub fn executable_stamp(path: &Path) -> Option<Stamp> {
        let Ok(Some(metadata)) = files::metadata(path) else { return None };
        let is_executable =
            metadata.is_file() && metadata.len() > 0 && metadata.mode() & 0o111 != 0;
        if is_executable { Some(Stamp::of(&metadata)) } else { None }
    }

    /// Returns whether the file `name` on the host has the same content and mode as in the image.
    fn is_current(&mut self, settings: &NodeSettings, name: &str) -> Result<bool, files::Error> {
        let verified_stamps = self.verified.remove(name);
        let image_path = settings.image_bin_dir.join(name);
        let host_path = settings.bin_dir.join(name);
        let Some(image) = files::metadata(&image_path)? else {
            return Ok(false);
        };
        let Some(host) = files::metadata(&host_path)? else {
            return Ok(false);
        };
        if !host.is_file() || host.len() != image.len() || mode(&host) != mode(&image) {
            return Ok(false);
        }
        let stamps = (Stamp::of(&image), Stamp::of(&host));
        let is_equal =
            verified_stamps == Some(stamps) || files::have_equal_content(&image_path, &host_path)?;
        if is_equal {
            self.verified.insert(name.to_owned(), stamps);
        }
        Ok(is_equal)
    }
}

fn is_regular_file(path: &Path) -> bool {
    match files::metadata(path) {
        Ok(Some(file)) => file.is_file(),
        Ok(None) | Err(_) => false,
    }
}

/// Returns the permission bits, including setuid, setgid and sticky.
fn mode(file: &Metadata) -> u32 {
    file.mode() & 0o7777
}
