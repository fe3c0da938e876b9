//! Restores the kubeconfig of an upstream agent that runs on the same node.
//!
//! Upstream's agent writes its kubeconfig when it starts and when its token rotates, about every 48
//! minutes. It does not notice that another agent overwrites the file. After `helm rollback` the
//! upstream agent keeps running while this agent ends. The upstream plugin would then use this
//! agent's token, which belongs to an uninstalled release. So this agent remembers the upstream
//! kubeconfig that it overwrites, and restores that kubeconfig when it ends. The kubeconfig of
//! another agent of this project is not restored, because that agent corrects it in its next pass.

use std::path::Path;

use serde::de::IgnoredAny;
use tracing::info;

use crate::files;
use crate::files::FileAccess;

/// The last upstream kubeconfig on the node, and the kubeconfig of this agent that replaced it.
#[derive(Default)]
pub struct UpstreamKubeconfig {
    /// Content, owner and mode of the upstream kubeconfig.
    saved: Option<(Vec<u8>, FileAccess)>,
    /// Text that this agent wrote last.
    written: String,
}

impl UpstreamKubeconfig {
    /// Remembers the kubeconfig at `path` if an upstream agent wrote it. Returns whether an
    /// upstream agent may run. None runs once the file is missing, because an upstream agent
    /// removes its kubeconfig when it ends.
    pub fn remember(&mut self, path: &Path) -> bool {
        match files::read(path) {
            Ok((bytes, access)) if is_upstream(&bytes) => self.saved = Some((bytes, access)),
            Err(error) if error.is_missing() => self.saved = None,
            _ => {}
        }
        self.saved.is_some()
    }

    /// Remembers the kubeconfig at `path`, and the `text` that this agent is going to write there.
    pub fn before_write(&mut self, path: &Path, text: &str) {
        self.remember(path);
        text.clone_into(&mut self.written);
    }

    /// Restores the upstream kubeconfig at `path`. Does nothing if another program has overwritten
    /// the kubeconfig of this agent meanwhile.
    pub fn restore(&self, path: &Path) -> Result<(), files::Error> {
        let Some((bytes, access)) = &self.saved else {
            return Ok(());
        };
        match files::replace(path, self.written.as_bytes(), bytes, *access) {
            Ok(()) => info!(
                "restored the kubeconfig {} of the upstream agent on this node",
                path.display()
            ),
            Err(files::Error::Raced { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Returns whether an upstream agent wrote `kubeconfig`: upstream writes YAML, this project JSON.
fn is_upstream(kubeconfig: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(kubeconfig).is_err()
        && String::from_utf8_lossy(kubeconfig).contains("token:")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const UPSTREAM: &str = "users:\n- name: linkerd-cni\n  user:\n    token: upstream-token\n";
    const OWN: &str = r#"{"users":[{"user":{"token":"own"}}]}"#;

    #[test]
    fn only_this_agents_kubeconfig_is_replaced_by_an_upstream_agents() {
        for (before, at_end, expected) in [
            (Some(UPSTREAM), OWN, UPSTREAM),
            (Some(UPSTREAM), "newer", "newer"),
            (Some(r#"{"token":"of an older agent"}"#), OWN, OWN),
            (Some("half a fi"), OWN, OWN),
            (None, OWN, OWN),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("kubeconfig");
            if let Some(before) = before {
                fs::write(&path, before).unwrap();
            }
            let mut saved = UpstreamKubeconfig::default();
            saved.before_write(&path, OWN);
            fs::write(&path, OWN).unwrap();
            // This agent writes a second time, for example with a renewed token. That must not make
            // it forget the upstream kubeconfig.
            saved.before_write(&path, OWN);
            fs::write(&path, at_end).unwrap();
            saved.restore(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
    }
}
