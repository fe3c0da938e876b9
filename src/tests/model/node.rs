//! The files of the node, as the actors of the model change them.

use std::collections::BTreeMap;

use linkerd2_cni::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use linkerd2_cni::conflist::saved_state::SavedState;
use linkerd2_cni::files::FileAccess;

use crate::text::Text;

/// Number of an agent: 0 starts first.
pub type Id = usize;

pub type Configs = BTreeMap<Text, Text>;

/// A file that an uninstall removes. Plugin binary and kubeconfig differ by the agent that wrote
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeFile {
    Kubeconfig,
    Binary,
    SavedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileContent {
    WrittenBy(Id),
    Text(Text),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub configs: Configs,
    pub saved_state: Option<FileContent>,
    pub kubeconfig: Option<FileContent>,
    pub binary: Option<FileContent>,
    /// The agent whose socket is at the path of the record socket. It may be dead.
    pub socket: Option<Id>,
    /// The agent whose chain is withdrawn, according to the record.
    pub withdrawn: Option<Id>,
    /// A killed agent left temporary files.
    pub has_leftovers: bool,
}

impl Node {
    pub fn file(&mut self, file: NodeFile) -> &mut Option<FileContent> {
        match file {
            NodeFile::Kubeconfig => &mut self.kubeconfig,
            NodeFile::Binary => &mut self.binary,
            NodeFile::SavedState => &mut self.saved_state,
        }
    }

    pub fn saved_text(&self) -> Option<Text> {
        match self.saved_state {
            Some(FileContent::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether the plugin can run: its binary and its kubeconfig exist.
    pub fn can_run_plugin(&self) -> bool {
        self.binary.is_some() && self.kubeconfig.is_some()
    }
}

/// The configs as the product's scan returns them.
pub fn config_files<'c>(
    configs: impl IntoIterator<Item = (&'c Text, &'c Text)>,
) -> Vec<ConfigFile> {
    let mut files = Vec::new();
    for (name, text) in configs {
        let Some(kind) = ConfigKind::from_file_name(name) else {
            continue;
        };
        let content =
            Content { text: text.to_string(), access: FileAccess::own(0o600), link: None };
        files.push(ConfigFile { name: name.to_string(), kind, content: Ok(content) });
    }
    files
}

/// Parses the text of the saved state with the product's own types.
pub fn saved_state(text: Option<Text>) -> SavedState {
    let text = text.unwrap_or_else(|| Text::new("{}"));
    serde_json::from_str(&text).unwrap()
}

pub fn saved_text(saved: &SavedState) -> Text {
    Text::new(&serde_json::to_string(saved).unwrap())
}
