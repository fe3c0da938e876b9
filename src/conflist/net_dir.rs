//! The host's directory of network configurations, as it is now.

use std::path::{Path, PathBuf};

use crate::files;
use crate::files::Access;

/// What the extension promises to a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `.conflist`: a list of plugins.
    List,
    /// `.conf`: one plugin.
    Conf,
    /// `.json`: one plugin, which upstream never looks at though runtimes do (D-21).
    Json,
}

impl Kind {
    /// The kind of a file by its name, as runtimes tell it: by the exact extension.
    pub fn of(name: &str) -> Option<Kind> {
        match name.rsplit_once('.')?.1 {
            "conflist" => Some(Kind::List),
            "conf" => Some(Kind::Conf),
            "json" => Some(Kind::Json),
            _ => None,
        }
    }
}

/// A file with the name of a network configuration.
#[derive(Clone, Debug)]
pub struct Found {
    pub name: String,
    pub kind: Kind,
    /// The file, or why it cannot be read.
    pub content: Result<Content, String>,
}

/// A file that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub text: String,
    pub access: Access,
    /// Where the name points, if it is a symbolic link.
    pub link: Option<PathBuf>,
}

/// Reads all configurations in `dir`, in the order in which runtimes sort them, but for
/// our kubeconfig, which may end in `.json`.
pub fn scan(dir: &Path, kubeconfig: &str) -> Result<Vec<Found>, files::Error> {
    let mut found = Vec::new();
    for name in files::names(dir)? {
        let Some(kind) = Kind::of(&name).filter(|_| name != kubeconfig) else {
            continue;
        };
        match content(&dir.join(&name)) {
            // Gone since the directory was listed; its removal wakes us again.
            Ok(None) => {}
            Ok(Some(content)) => found.push(Found {
                name,
                kind,
                content: Ok(content),
            }),
            Err(why) => found.push(Found {
                name,
                kind,
                content: Err(why),
            }),
        }
    }
    Ok(found)
}

fn content(path: &Path) -> Result<Option<Content>, String> {
    let says = |error: files::Error| match error {
        files::Error::Unfit { what, .. } => what.to_owned(),
        files::Error::Io { source, .. } => {
            let remedy = files::remedy("read", &source);
            format!("cannot be read: {source}{remedy}")
        }
        error => error.to_string(),
    };
    let Some(metadata) = files::look(path).map_err(says)? else {
        return Ok(None);
    };
    let link = match metadata.is_symlink() {
        true => Some(files::target(path).map_err(says)?),
        false => None,
    };
    let (bytes, access) = match files::read(path) {
        Err(error) if error.is_missing() && link.is_some() => {
            return Err("is a link to nothing".into());
        }
        Err(error) if error.is_missing() => return Ok(None),
        result => result.map_err(says)?,
    };
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    Ok(Some(Content { text, access, link }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_last_extension_counts() {
        for (name, kind) in [
            ("10-x.conflist", Some(Kind::List)),
            (".x.conflist", Some(Kind::List)),
            ("10-x.conf", Some(Kind::Conf)),
            ("10-x.json", Some(Kind::Json)),
            ("10-x.CONF", None),
            ("10-x.conflist.bak", None),
            ("10-x.conflist.cilium_bak", None),
            ("10-x.conflist.install", None),
            (".linkerd-cni-state", None),
            (".linkerd-cni.1.2.3.tmp", None),
            ("conf", None),
        ] {
            assert_eq!(Kind::of(name), kind, "{name}");
        }
    }
}
