//! The digest that identifies what the agent chains: if the digest is the same, the container
//! runtime will fail, or succeed, as it did before.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use ring::digest::{Context, Digest, SHA256};

use super::NodeSettings;
use super::binaries::{Binaries, Stamp};
use crate::conflist::{Entry, PLUGIN};

/// Size of the parts in which the plugin binary is read, in bytes.
const PART: usize = 16 << 10;

/// Computes the digest, and remembers that of the plugin binary, so that the file, which has
/// megabytes, is read again only after a change.
#[derive(Debug, Default)]
pub struct ChainDigest {
    binary: Option<(Stamp, Digest)>,
}

impl ChainDigest {
    /// Returns the digest of the plugin binary on the host, its directory, the net dir, the chain
    /// mode and the plugin entry, in hexadecimal. `None` if the binary is not executable or cannot
    /// be read.
    pub fn compute(&mut self, settings: &NodeSettings, entry: &Entry) -> Option<String> {
        let binary = self.binary_digest(&settings.bin_dir.join(PLUGIN))?;
        let only_config = settings.mode.only_config().unwrap_or_default();
        let mut context = Context::new(&SHA256);
        context.update(binary.as_ref());
        for part in [
            settings.bin_dir_on_node.as_os_str().as_encoded_bytes(),
            settings.net_dir_on_node.as_os_str().as_encoded_bytes(),
            only_config.as_bytes(),
            entry.text().as_bytes(),
        ] {
            // The length separates the part from the next one.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        Some(hexadecimal(context.finish()))
    }

    fn binary_digest(&mut self, path: &Path) -> Option<Digest> {
        let stamp = Binaries::executable_stamp(path)?;
        if let Some((known_stamp, digest)) = self.binary
            && known_stamp == stamp
        {
            return Some(digest);
        }
        self.binary = None;
        let digest = file_digest(path).ok()?;
        self.binary = Some((stamp, digest));
        Some(digest)
    }
}

fn file_digest(path: &Path) -> io::Result<Digest> {
    let mut file = fs::File::open(path)?;
    let mut context = Context::new(&SHA256);
    let mut part = vec![0; PART];
    loop {
        let length = file.read(&mut part)?;
        if length == 0 {
            return Ok(context.finish());
        }
        context.update(&part[..length]);
    }
}

fn hexadecimal(digest: Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;
    use crate::conflist::chain_mode::ChainMode;
    use crate::files::{self, FileAccess};

    fn settings(root: &Path, bin_dir: &str) -> NodeSettings {
        NodeSettings {
            image_bin_dir: "/image".into(),
            mount_prefix: root.to_owned(),
            net_dir_on_node: "/net".into(),
            bin_dir_on_node: Path::new("/").join(bin_dir),
            bin_dir: root.join(bin_dir),
            net_dir: root.join("net"),
            kubeconfig_name: "kubeconfig".into(),
            kubeconfig_on_host: "/net/kubeconfig".into(),
            mode: ChainMode::Every,
            keep_binary: None,
            run_dir: None,
        }
    }

    #[test]
    fn the_digest_changes_with_binary_directory_and_entry() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["bin", "other"] {
            fs::create_dir(root.path().join(dir)).unwrap();
            let path = root.path().join(dir).join(PLUGIN);
            fs::write(&path, "plugin").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let entry = |port: u16| {
            let value = json!({"type": PLUGIN, "linkerd": {"incoming-proxy-port": port}});
            Entry::new(&value.to_string(), "").unwrap()
        };
        let bin = settings(root.path(), "bin");
        let mut digest = ChainDigest::default();
        let first = digest.compute(&bin, &entry(1)).unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(digest.compute(&bin, &entry(1)).unwrap(), first);
        assert_eq!(ChainDigest::default().compute(&bin, &entry(1)).unwrap(), first);
        assert_ne!(digest.compute(&bin, &entry(2)).unwrap(), first);
        let other = settings(root.path(), "other");
        assert_ne!(ChainDigest::default().compute(&other, &entry(1)).unwrap(), first);
        let binary = root.path().join("bin").join(PLUGIN);
        files::write(&binary, b"newer!", FileAccess::own(0o755)).unwrap();
        assert_ne!(digest.compute(&bin, &entry(1)).unwrap(), first);
        fs::remove_file(&binary).unwrap();
        assert_eq!(digest.compute(&bin, &entry(1)), None);
    }
}
