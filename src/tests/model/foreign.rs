//! The primary CNI, which writes its network config without regard to the agents.

use crate::node::Node;
use crate::scenario::CONFLIST;
use crate::text::Text;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForeignAction {
    Rewrite,
    /// Replaces its `.conf` by a conflist.
    RenameToConflist,
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Foreign {
    pub name: Text,
    version: u8,
    writes_left: u8,
    /// What it wrote last, unless it removed its config.
    pub latest: Option<Text>,
}

/// Returns the text of the primary CNI's config: a conflist or a single plugin, by its name.
fn content(name: &str, version: u8) -> Text {
    let plugin = format!(r#"{{"type":"bridge","name":"net","mtu":{version}}}"#);
    if name == CONFLIST {
        return Text::new(&format!(
            r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#
        ));
    }
    Text::new(&plugin)
}

impl Foreign {
    /// Creates the primary CNI, and a node with its config `name`.
    pub fn start(name: &str, writes: u8) -> (Foreign, Node) {
        let text = content(name, 0);
        let name = Text::new(name);
        let mut node = Node::default();
        node.configs.insert(name, text);
        (Foreign { name, version: 0, writes_left: writes, latest: Some(text) }, node)
    }

    /// Returns the actions that are possible now.
    pub fn actions(&self, node: &Node) -> Vec<ForeignAction> {
        if self.writes_left == 0 {
            return Vec::new();
        }
        let mut actions = vec![ForeignAction::Rewrite];
        if &*self.name != CONFLIST {
            actions.push(ForeignAction::RenameToConflist);
        }
        if self.latest.is_some() && node.configs.contains_key(&self.name) {
            actions.push(ForeignAction::Remove);
        }
        actions
    }
}

impl World {
    pub fn foreign_writes(&mut self, action: ForeignAction) {
        let foreign = &mut self.foreign;
        let configs = &mut self.node.configs;
        foreign.writes_left -= 1;
        match action {
            ForeignAction::Remove => {
                configs.remove(&foreign.name);
                foreign.latest = None;
            }
            ForeignAction::Rewrite | ForeignAction::RenameToConflist => {
                if action == ForeignAction::RenameToConflist {
                    configs.remove(&foreign.name);
                    foreign.name = Text::new(CONFLIST);
                }
                foreign.version += 1;
                let text = content(&foreign.name, foreign.version);
                configs.insert(foreign.name, text);
                foreign.latest = Some(text);
            }
        }
        self.changed();
    }
}
