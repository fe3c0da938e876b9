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

fn content(name: &str, version: u8) -> Text {
    let plugin = format!(r#"{{"type":"bridge","name":"net","mtu":{version}}}"#);
    Text::new(&match name == CONFLIST {
        true => format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#),
        false => plugin,
    })
}

impl Foreign {
    /// The primary CNI with its config `name` on a node.
    pub fn start(name: &str, writes: u8) -> (Foreign, Node) {
        let (text, name) = (content(name, 0), Text::new(name));
        let mut node = Node::default();
        node.configs.insert(name, text);
        (Foreign { name, version: 0, writes_left: writes, latest: Some(text) }, node)
    }

    pub fn actions(&self, node: &Node) -> impl Iterator<Item = ForeignAction> {
        let can_rename = &*self.name != CONFLIST;
        let can_remove = self.latest.is_some() && node.configs.contains_key(&self.name);
        let actions = [
            (true, ForeignAction::Rewrite),
            (can_rename, ForeignAction::RenameToConflist),
            (can_remove, ForeignAction::Remove),
        ];
        let can_write = self.writes_left > 0;
        actions.into_iter().filter_map(move |(can, action)| (can && can_write).then_some(action))
    }
}

impl World {
    pub fn foreign_writes(&mut self, action: ForeignAction) {
        let (foreign, configs) = (&mut self.foreign, &mut self.node.configs);
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
