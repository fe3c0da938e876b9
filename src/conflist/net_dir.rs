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
    /// Returns the kind of the file `name`, by its extension, which must match exactly, as in
    /// runtimes. `None` if no runtime loads a file with that extension.
    pub fn from_file_name(name: &str) -> Option<ConfigKind> {
        let (_, extension) = name.rsplit_once('.')?;
        match extension {
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
    /// Returns the text of the file. The text is empty if the file cannot be read.
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

    /// Splits the file name into the name of the network config and the suffix that Cilium
    /// appended. The suffix is empty if Cilium has not renamed the file.
    pub fn split_name(&self) -> (&str, &str) {
        split_backup_suffix(&self.name)
    }

    /// Returns whether Cilium has renamed the file, so that no runtime loads it.
    pub fn is_renamed(&self) -> bool {
        let (_, suffix) = self.split_name();
        !suffix.is_empty()
    }
}

/// Why the agent cannot read a network config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Rest of a sentence that starts with the file's name.
    pub why: String,
    pub runtime: RuntimeReaction,
    /// Whether a runtime that reads the file, now or later, may find a plugin entry in it.
    pub may_name_plugin: bool,
}

/// What the container runtime does with a network config that the agent cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeReaction {
    /// The runtime may be able to read the file, and then loads it.
    MayLoad,
    /// The runtime cannot load the file either. containerd then loads no network config at all,
    /// CRI-O skips the file.
    FailsToLoad,
    /// The runtime does not try to load the file, for example because it is a directory.
    Ignores,
}

impl From<files::Error> for Unreadable {
    fn from(error: files::Error) -> Self {
        let is_no_file = error.is_no_file();
        let runtime = if is_no_file { RuntimeReaction::Ignores } else { RuntimeReaction::MayLoad };
        Unreadable { why: error.without_path(), runtime, may_name_plugin: !is_no_file }
    }
}

/// Content of a network config that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub text: String,
    pub access: FileAccess,
    /// Target of the symbolic link. `None` if the file is a regular file.
    pub link: Option<PathBuf>,
}

/// Reads all network configs in `dir`. Returns them in name order, because a runtime loads the
/// first valid one in this order. Leaves out the agent's own kubeconfig, the file
/// `kubeconfig_name`: its name may end in `.json`, too.
pub fn scan(dir: &Path, kubeconfig_name: &str) -> Result<Vec<ConfigFile>, files::Error> {
    let mut configs = scan_with_backups(dir, kubeconfig_name)?;
    configs.retain(|file| !file.is_renamed());
    Ok(configs)
}

/// Reads what [`scan`] reads, and also the network configs that Cilium has renamed. No runtime
/// loads a renamed network config. But Cilium's uninstall gives the file its name back, so the
/// plugin entry has to be removed from it, too.
pub fn scan_with_backups(
    dir: &Path,
    kubeconfig_name: &str,
) -> Result<Vec<ConfigFile>, files::Error> {
    let mut configs = Vec::new();
    for name in files::file_names(dir)? {
        if name == kubeconfig_name {
            continue;
        }
        let (config_name, _) = split_backup_suffix(&name);
        let Some(kind) = ConfigKind::from_file_name(config_name) else {
            continue;
        };
        let content = match read_content(dir, &name, kind) {
            Ok(Some(content)) => Ok(content),
            // The file was removed after the directory was listed. The next pass does not find it:
            // the file watch reports the removal, which triggers that pass.
            Ok(None) => continue,
            Err(unreadable) => Err(unreadable),
        };
        configs.push(ConfigFile { name, kind, content });
    }
    Ok(configs)
}

/// Returns whether a runtime that loads a network config with this `text` may call the plugin.
///
/// It may if an object at any depth has the plugin's `type`. Not only the plugins of the list
/// count, because the config that Multus generates has a copy of the primary CNI's conflist in
/// `delegates`. A text that is not JSON may be half written, so the name of the plugin anywhere in
/// it is enough.
pub fn may_call_plugin(text: &str) -> bool {
    // Parsing takes memory, so a text is not parsed if it has neither the plugin's name nor an
    // escape such as `\u002d` that could hide the name.
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
        // The case of the key does not matter, because runtimes use Go's JSON decoder, which
        // ignores the case of keys.
        Value::Object(members) => members.iter().any(|(key, value)| {
            key.eq_ignore_ascii_case("type") && value == PLUGIN || has_plugin_type(value)
        }),
        Value::Array(elements) => elements.iter().any(has_plugin_type),
        _ => false,
    }
}

/// Returns whether a runtime may find a plugin entry in `file`. A file that this agent cannot read
/// may have one.
pub fn may_name_plugin(file: &ConfigFile) -> bool {
    match &file.content {
        Ok(content) => may_call_plugin(&content.text),
        Err(unreadable) => unreadable.may_name_plugin,
    }
}

/// Returns the files in `dir` from which libcni takes the plugins of a conflist.
fn list_fragments(dir: &Path) -> Vec<PathBuf> {
    let mut names = files::file_names(dir).unwrap_or_default();
    names.retain(|name| ConfigKind::from_file_name(name) == Some(ConfigKind::Conf));
    names.iter().map(|name| dir.join(name)).collect()
}

/// Returns whether the file at `path`, from which libcni takes one plugin of a conflist, may be a
/// plugin entry. A file that this agent cannot read may be one.
fn fragment_may_name_plugin(path: &Path) -> bool {
    match files::read(path) {
        Ok((bytes, _)) => may_call_plugin(&String::from_utf8_lossy(&bytes)),
        Err(error) => !error.is_no_file(),
    }
}

/// Returns whether the symbolic link at `path` may lead to a file of the node that is not mounted
/// in this container. With an absolute `target` it always may: on the node, the path starts at the
/// root directory of the node, not at that of this container.
fn leads_out_of_mount(path: &Path, target: &Path) -> bool {
    let goes_up = target.components().any(|part| part == Component::ParentDir);
    target.is_absolute() || goes_up && !path.exists()
}

fn split_backup_suffix(name: &str) -> (&str, &str) {
    match name.strip_suffix(BACKUP_SUFFIX) {
        Some(config) => (config, BACKUP_SUFFIX),
        None => (name, ""),
    }
}

/// Describes a network config whose bytes are not UTF-8. A runtime may load it nevertheless: Go's
/// decoder accepts invalid bytes inside strings, and replaces them as `from_utf8_lossy` does.
fn describe_non_utf8(bytes: &[u8]) -> Unreadable {
    let text = String::from_utf8_lossy(bytes);
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    Unreadable {
        why: "is not UTF-8".to_owned(),
        runtime: if is_json { RuntimeReaction::MayLoad } else { RuntimeReaction::FailsToLoad },
        may_name_plugin: may_call_plugin(&text),
    }
}

/// Reads the network config `name`. `None` if the file does not exist.
fn read_content(dir: &Path, name: &str, kind: ConfigKind) -> Result<Option<Content>, Unreadable> {
    let path = &dir.join(name);
    let Some(metadata) = files::metadata(path)? else {
        return Ok(None);
    };
    let mut link = None;
    if metadata.is_symlink() {
        link = Some(read_link(path)?);
    }
    let (bytes, access) = match files::read(path) {
        Ok(bytes_and_access) => bytes_and_access,
        Err(error) if error.is_missing() && link.is_some() => {
            return Err(Unreadable {
                why: "is a symbolic link to a missing file".to_owned(),
                runtime: RuntimeReaction::FailsToLoad,
                may_name_plugin: false,
            });
        }
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(describe_non_utf8(error.as_bytes())),
    };
    if kind == ConfigKind::Conflist {
        check_fragments(dir, &text)?;
    }
    Ok(Some(Content { text, access, link }))
}

/// Returns the target of a symbolic link. Fails if the link leads out of the mounted directory.
fn read_link(path: &Path) -> Result<PathBuf, Unreadable> {
    let target = files::link_target(path)?;
    if leads_out_of_mount(path, &target) {
        let target = target.display();
        return Err(Unreadable {
            why: format!("is a symbolic link out of the mounted directory, to {target}"),
            runtime: RuntimeReaction::MayLoad,
            may_name_plugin: true,
        });
    }
    Ok(target)
}

/// Fails if libcni takes the plugins of the conflist `text` from other files. The agent splices its
/// entry only into a conflist that has its plugins itself.
fn check_fragments(dir: &Path, text: &str) -> Result<(), Unreadable> {
    let Ok(conflist) = Conflist::parse_or_standalone(text) else {
        return Ok(());
    };
    let Some(name) = conflist.fragments_dir() else {
        return Ok(());
    };
    let fragments = list_fragments(&dir.join(&name));
    if fragments.is_empty() {
        return Ok(());
    }
    Err(Unreadable {
        why: format!("takes its plugins from the files in the directory {name}"),
        runtime: RuntimeReaction::MayLoad,
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
    fn absolute_links_and_dangling_links_to_another_directory_lead_out() {
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
            assert_eq!(leads_out_of_mount(&link, Path::new(target)), expected, "{target}");
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn invalid_utf_8_is_accepted_only_inside_strings_as_in_go() {
        assert_eq!(describe_non_utf8(b"{\"a\":\"\xff\"}").runtime, RuntimeReaction::MayLoad);
        for invalid in
            [&b"{\"a\":\xff}"[..], b"\xff{}", b"\xff\xfe", b"\xef\xbb\xbf{\"a\":\"\xff\"}"]
        {
            assert_eq!(
                describe_non_utf8(invalid).runtime,
                RuntimeReaction::FailsToLoad,
                "{invalid:?}"
            );
        }
    }

    #[test]
    fn file_that_is_not_utf8_names_the_plugin_if_go_finds_its_type() {
        for (bytes, may_name_plugin) in [
            (&b"{\"x\":\"\xe9\",\"plugins\":[{\"type\":\"linkerd-cni\"}]}"[..], true),
            (b"{\"x\":\"\xe9\",\"plugins\":[{\"type\":\"portmap\"}]}", false),
            // The text is half written and ends within a character, so the plugin's name is enough.
            (b"{\"plugins\":[{\"type\":\"linkerd-cni\",\"x\":\"\xc3", true),
        ] {
            assert_eq!(describe_non_utf8(bytes).may_name_plugin, may_name_plugin, "{bytes:?}");
        }
    }

    #[test]
    fn plugin_is_found_at_any_depth_and_in_half_written_text() {
        for (name, row) in rows_of::<CallRow>(TABLES, "calls") {
            assert_eq!(may_call_plugin(&row.text), row.may_call_plugin, "{name}");
        }
    }
}
