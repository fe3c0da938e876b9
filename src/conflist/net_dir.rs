//! Reads the network configs in the CNI net dir of the host.

use std::path::{Path, PathBuf};

use crate::files;
use crate::files::FileAccess;

/// The form of a network config, which runtimes tell by the file extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// `.conflist`: a list of plugins.
    Conflist,
    /// `.conf`: one plugin.
    Conf,
    /// `.json`: one plugin. Runtimes load it, but upstream's agent ignores it.
    Json,
}

impl ConfigKind {
    /// Returns the form of the file `name`. Like in runtimes, the extension must match exactly.
    pub fn of(name: &str) -> Option<ConfigKind> {
        match name.rsplit_once('.')?.1 {
            "conflist" => Some(ConfigKind::Conflist),
            "conf" => Some(ConfigKind::Conf),
            "json" => Some(ConfigKind::Json),
            _ => None,
        }
    }
}

/// A file that is a network config by its name.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub name: String,
    pub kind: ConfigKind,
    /// The content, or why it cannot be read.
    pub content: Result<Content, String>,
}

/// Content and metadata of a readable file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub text: String,
    pub access: FileAccess,
    /// Target of the symbolic link, if the file is one.
    pub link: Option<PathBuf>,
}

impl Content {
    /// Returns whether the agent need not write `wanted` over this content. The owner may also be
    /// that of this process, which without CAP_CHOWN cannot set another one.
    pub fn is_like(&self, wanted: &Content) -> bool {
        let own = FileAccess::own(wanted.access.mode);
        let has_access = self.access == wanted.access || self.access == own;
        has_access && (&self.text, &self.link) == (&wanted.text, &wanted.link)
    }
}

/// Reads all network configs in `dir`, in name order, in which runtimes look for the first valid
/// one. The agent's `kubeconfig`, which may end in `.json`, is left out.
///
/// # Errors
/// Fails if `dir` cannot be listed. A file that cannot be read is returned with the reason.
pub fn scan(dir: &Path, kubeconfig: &str) -> Result<Vec<ConfigFile>, files::Error> {
    let mut found = Vec::new();
    for name in files::file_names(dir)? {
        let Some(kind) = ConfigKind::of(&name).filter(|_| name != kubeconfig) else {
            continue;
        };
        match content(&dir.join(&name)) {
            // Removed since the directory was listed. The watch reports that as a change.
            Ok(None) => {}
            Ok(Some(content)) => found.push(ConfigFile { name, kind, content: Ok(content) }),
            Err(reason) => found.push(ConfigFile { name, kind, content: Err(reason) }),
        }
    }
    Ok(found)
}

/// Reads the file at `path`; `None` if it is missing. Fails with the reason as text.
fn content(path: &Path) -> Result<Option<Content>, String> {
    let describe = |error: files::Error| match error {
        files::Error::Unusable { why, .. } => why.to_owned(),
        files::Error::Io { source, .. } => {
            let remedy = files::remedy("read", &source);
            format!("cannot be read: {source}{remedy}")
        }
        error => error.to_string(),
    };
    let Some(metadata) = files::metadata(path).map_err(describe)? else {
        return Ok(None);
    };
    let link = match metadata.is_symlink() {
        true => Some(files::link_target(path).map_err(describe)?),
        false => None,
    };
    let (bytes, access) = match files::read(path) {
        Err(error) if error.is_missing() && link.is_some() => {
            return Err("is a symbolic link to a missing file".into());
        }
        Err(error) if error.is_missing() => return Ok(None),
        result => result.map_err(describe)?,
    };
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    Ok(Some(Content { text, access, link }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_last_extension_makes_a_network_config() {
        for (name, kind) in [
            ("10-x.conflist", Some(ConfigKind::Conflist)),
            (".x.conflist", Some(ConfigKind::Conflist)),
            ("10-x.conf", Some(ConfigKind::Conf)),
            ("10-x.json", Some(ConfigKind::Json)),
            ("10-x.CONF", None),
            ("10-x.conflist.bak", None),
            ("10-x.conflist.cilium_bak", None),
            ("10-x.conflist.install", None),
            (".linkerd-cni-state", None),
            (".linkerd-cni.1.2.3.tmp", None),
            ("conf", None),
        ] {
            assert_eq!(ConfigKind::of(name), kind, "{name}");
        }
    }
}
