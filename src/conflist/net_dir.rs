//! Reads the network configs in the CNI net dir of the host.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::{ChainedEntry, Conflist, PLUGIN, plugin_entry};
use crate::files::{self, FileAccess};

/// Suffix that Cilium appends to the name of each network config of another plugin while
/// `cni.exclusive=true`. Cilium's uninstall removes the suffix.
const BACKUP_SUFFIX: &str = ".cilium_bak";

/// Form of a network config, by the extension of its file name.
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
    /// Returns the kind of a file. `None`: no runtime loads it. As in runtimes, the extension must
    /// match exactly.
    pub fn from_file_name(name: &str) -> Option<ConfigKind> {
        match name.rsplit_once('.')?.1 {
            "conflist" => Some(ConfigKind::Conflist),
            "conf" => Some(ConfigKind::Conf),
            "json" => Some(ConfigKind::Json),
            _ => None,
        }
    }
}

/// A network config in the CNI net dir.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub name: String,
    pub kind: ConfigKind,
    pub content: Result<Content, Unreadable>,
}

impl ConfigFile {
    /// Returns the text, empty if the file cannot be read.
    pub fn text(&self) -> &str {
        match &self.content {
            Ok(content) => &content.text,
            Err(_) => "",
        }
    }

    /// Returns the file's first plugin entry.
    pub fn plugin_entry(&self) -> Option<ChainedEntry<'_>> {
        plugin_entry(self.text())
    }

    /// Returns the file's conflist. `None` if the file cannot be read or holds no conflist.
    pub fn conflist(&self) -> Option<Conflist<'_>> {
        let content = self.content.as_ref().ok()?;
        Conflist::parse_any(&content.text).ok()
    }

    /// Splits the name into that of the network config and the suffix that Cilium appended, if any.
    pub fn split_name(&self) -> (&str, &str) {
        split_backup(&self.name)
    }
}

/// Why the agent cannot read a network config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Rest of a sentence that starts with the file's name.
    pub why: String,
    pub for_runtime: ForRuntime,
    /// Whether the file may name the plugin, for a runtime that reads it now or later.
    pub may_name_plugin: bool,
}

/// What the container runtime does with a network config that the agent cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForRuntime {
    /// The runtime may read the file, and load it.
    MayLoad,
    /// The runtime cannot load the file either. containerd fails at it, CRI-O skips it.
    Invalid,
    /// The runtime does not try to load it, such as a directory.
    Ignored,
}

impl From<files::Error> for Unreadable {
    fn from(error: files::Error) -> Self {
        let is_no_file = error.is_no_file();
        let for_runtime = if is_no_file { ForRuntime::Ignored } else { ForRuntime::MayLoad };
        Unreadable { why: error.without_path(), for_runtime, may_name_plugin: !is_no_file }
    }
}

/// Content of a network config that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub text: String,
    pub access: FileAccess,
    /// Target, if the file is a symbolic link.
    pub link: Option<PathBuf>,
}

/// Reads all network configs in `dir`, in name order, in which runtimes look for the first valid
/// one. The agent's `kubeconfig`, which may end in `.json`, is left out.
pub fn scan(dir: &Path, kubeconfig: &str) -> Result<Vec<ConfigFile>, files::Error> {
    let mut found = scan_with_backups(dir, kubeconfig)?;
    found.retain(|file| file.split_name().1.is_empty());
    Ok(found)
}

/// Reads what [`scan`] reads, and the network configs that Cilium has renamed. No runtime loads a
/// renamed network config, but Cilium's uninstall gives the file its name back.
pub fn scan_with_backups(dir: &Path, kubeconfig: &str) -> Result<Vec<ConfigFile>, files::Error> {
    let mut found = Vec::new();
    for name in files::file_names(dir)? {
        if name == kubeconfig {
            continue;
        }
        let Some(kind) = ConfigKind::from_file_name(split_backup(&name).0) else {
            continue;
        };
        let content = match read_content(dir, &name, kind) {
            Ok(Some(content)) => Ok(content),
            // The file was removed after the directory was listed. The file watch reports that
            // change.
            Ok(None) => continue,
            Err(unreadable) => Err(unreadable),
        };
        found.push(ConfigFile { name, kind, content });
    }
    Ok(found)
}

/// Returns whether a runtime may call the plugin, as an object at any depth has its `type`: the
/// config that Multus generates has a copy of the primary CNI's conflist in `delegates`. For text
/// that is not JSON, which may be half written, the plugin's name is enough.
pub fn may_call_plugin(text: &str) -> bool {
    // Skip parsing, which takes memory, unless the name is present or an escape could hide it.
    if !text.contains(PLUGIN) && !text.contains('\\') {
        return false;
    }
    match serde_json::from_str(text) {
        Ok(value) => has_plugin_type(&value),
        Err(_) => text.contains(PLUGIN),
    }
}

fn has_plugin_type(value: &Value) -> bool {
    match value {
        // Runtimes are written in Go, whose JSON decoder ignores the case of keys.
        Value::Object(members) => members.iter().any(|(key, value)| {
            key.eq_ignore_ascii_case("type") && value == PLUGIN || has_plugin_type(value)
        }),
        Value::Array(elements) => elements.iter().any(has_plugin_type),
        _ => false,
    }
}

/// Returns whether a runtime may find the plugin in `file`, also if this agent cannot read or parse
/// the file.
pub fn may_name_plugin(file: &ConfigFile) -> bool {
    match &file.content {
        Ok(content) => may_call_plugin(&content.text),
        Err(unreadable) => unreadable.may_name_plugin,
    }
}

/// Returns the files in `dir` in which libcni finds plugins of a conflist.
fn fragments_in(dir: &Path) -> Vec<PathBuf> {
    let mut names = files::file_names(dir).unwrap_or_default();
    names.retain(|name| ConfigKind::from_file_name(name) == Some(ConfigKind::Conf));
    names.iter().map(|name| dir.join(name)).collect()
}

/// Returns whether the file at `path`, which has a plugin of a conflist, may be the plugin entry.
fn fragment_may_name_plugin(path: &Path) -> bool {
    match files::read(path) {
        Ok((bytes, _)) => may_call_plugin(&String::from_utf8_lossy(&bytes)),
        Err(error) => !error.is_no_file(),
    }
}

/// Returns whether the symbolic link `path` may lead to a file of the node that is not mounted
/// here. On the node, an absolute target starts at another root directory.
fn leads_out(path: &Path, target: &Path) -> bool {
    let leaves = target.components().any(|part| part == Component::ParentDir);
    target.is_absolute() || leaves && !path.exists()
}

fn split_backup(name: &str) -> (&str, &str) {
    match name.strip_suffix(BACKUP_SUFFIX) {
        Some(config) => (config, BACKUP_SUFFIX),
        None => (name, ""),
    }
}

/// Describes a network config whose bytes are not UTF-8. Go's decoder accepts invalid bytes inside
/// strings, and replaces them as `from_utf8_lossy` does.
fn not_utf8(bytes: &[u8]) -> Unreadable {
    let text = String::from_utf8_lossy(bytes);
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    Unreadable {
        why: "is not UTF-8".to_owned(),
        for_runtime: if is_json { ForRuntime::MayLoad } else { ForRuntime::Invalid },
        may_name_plugin: may_call_plugin(&text),
    }
}

/// Reads the network config `name`. `None` if the file does not exist.
fn read_content(dir: &Path, name: &str, kind: ConfigKind) -> Result<Option<Content>, Unreadable> {
    let path = &dir.join(name);
    let Some(metadata) = files::metadata(path)? else {
        return Ok(None);
    };
    let link = if metadata.is_symlink() { Some(read_link(path)?) } else { None };
    let (bytes, access) = match files::read(path) {
        Ok(read) => read,
        Err(error) if error.is_missing() && link.is_some() => {
            let why = "is a symbolic link to a missing file".to_owned();
            let for_runtime = ForRuntime::Invalid;
            return Err(Unreadable { why, for_runtime, may_name_plugin: false });
        }
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(not_utf8(error.as_bytes())),
    };
    if kind == ConfigKind::Conflist {
        check_fragments(dir, &text)?;
    }
    Ok(Some(Content { text, access, link }))
}

/// Returns the target of a symbolic link. Fails if the link leads out of the mounted directory.
fn read_link(path: &Path) -> Result<PathBuf, Unreadable> {
    let target = files::link_target(path)?;
    if leads_out(path, &target) {
        let why =
            format!("is a symbolic link out of the mounted directory, to {}", target.display());
        let for_runtime = ForRuntime::MayLoad;
        return Err(Unreadable { why, for_runtime, may_name_plugin: true });
    }
    Ok(target)
}

/// Fails if libcni takes the plugins of the conflist `text` from other files.
fn check_fragments(dir: &Path, text: &str) -> Result<(), Unreadable> {
    let Ok(conflist) = Conflist::parse_or_standalone(text) else {
        return Ok(());
    };
    let Some(name) = conflist.fragments_dir() else {
        return Ok(());
    };
    let fragments = fragments_in(&dir.join(&name));
    if fragments.is_empty() {
        return Ok(());
    }
    Err(Unreadable {
        why: format!("takes its plugins from the files in the directory {name}"),
        for_runtime: ForRuntime::MayLoad,
        may_name_plugin: may_call_plugin(text)
            || fragments.iter().any(|path| fragment_may_name_plugin(path)),
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use testkit::table::rows_of;

    use super::*;

    const TABLES: &str = include_str!("net_dir.yaml");

    /// A row of `kinds` in `net_dir.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct KindRow {
        file: String,
        kind: Option<String>,
    }

    /// A row of `calls` in `net_dir.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct CallRow {
        text: String,
        may_call_plugin: bool,
    }

    #[test]
    fn only_the_exact_last_extension_makes_a_network_config() {
        for (name, row) in rows_of::<KindRow>(TABLES, "kinds") {
            let found = ConfigKind::from_file_name(&row.file).map(|kind| format!("{kind:?}"));
            assert_eq!(found, row.kind, "{name}");
        }
    }

    #[test]
    fn absolute_links_and_dangling_links_to_the_outside_lead_out() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("net.d/link");
        std::fs::create_dir(root.path().join("net.d")).unwrap();
        std::fs::write(root.path().join("beside"), "").unwrap();
        for (target, expected) in [
            ("missing", false),
            ("link", false),
            ("../beside", false),
            ("../missing", true),
            ("/etc/passwd", true),
        ] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert_eq!(leads_out(&link, Path::new(target)), expected, "{target}");
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn invalid_utf_8_is_accepted_only_inside_strings_as_in_go() {
        assert_eq!(not_utf8(b"{\"a\":\"\xff\"}").for_runtime, ForRuntime::MayLoad);
        for invalid in
            [&b"{\"a\":\xff}"[..], b"\xff{}", b"\xff\xfe", b"\xef\xbb\xbf{\"a\":\"\xff\"}"]
        {
            assert_eq!(not_utf8(invalid).for_runtime, ForRuntime::Invalid, "{invalid:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_utf8_names_the_plugin_if_go_finds_its_type() {
        for (bytes, may_name_plugin) in [
            (&b"{\"x\":\"\xe9\",\"plugins\":[{\"type\":\"linkerd-cni\"}]}"[..], true),
            (b"{\"x\":\"\xe9\",\"plugins\":[{\"type\":\"portmap\"}]}", false),
            // The text is half written, and ends within a character.
            (b"{\"plugins\":[{\"type\":\"linkerd-cni\",\"x\":\"\xc3", true),
        ] {
            assert_eq!(not_utf8(bytes).may_name_plugin, may_name_plugin, "{bytes:?}");
        }
    }

    #[test]
    fn the_plugin_is_found_at_any_depth_and_in_half_written_text() {
        for (name, row) in rows_of::<CallRow>(TABLES, "calls") {
            assert_eq!(may_call_plugin(&row.text), row.may_call_plugin, "{name}");
        }
    }
}
