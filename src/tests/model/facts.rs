//! Facts about a text, from the product's parsers. Each text is parsed once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use linkerd2_cni::conflist::net_dir::may_call_plugin;
use linkerd2_cni::conflist::saved_state::OriginalContent;
use linkerd2_cni::conflist::{Conflist, PLUGIN, plugin_types};

use crate::node::saved_state;
use crate::text::Text;

/// Returns the value of `text`. If the cache lacks it, calls `make` and keeps the value.
fn get_or_make<V: Clone>(
    cache: &RefCell<HashMap<Text, V>>,
    text: Text,
    make: impl FnOnce(Text) -> V,
) -> V {
    cache.borrow_mut().entry(text).or_insert_with(|| make(text)).clone()
}

pub struct ConfigFacts {
    /// Number of the plugin entries.
    pub calls: usize,
    pub may_call: bool,
    /// The conflist without plugin entries.
    pub bare: Option<Text>,
}

/// Conflists in the saved state, each with its original text.
type Originals = Rc<Vec<(Text, Text)>>;

thread_local! {
    static CONFIGS: RefCell<HashMap<Text, Rc<ConfigFacts>>> = RefCell::default();
    static ORIGINALS: RefCell<HashMap<Text, Originals>> = RefCell::default();
}

/// Returns the facts about the text of a network config.
pub fn config(text: Text) -> Rc<ConfigFacts> {
    CONFIGS.with(|cache| get_or_make(cache, text, |text| Rc::new(parse_config(text))))
}

fn parse_config(text: Text) -> ConfigFacts {
    let bare = match Conflist::parse_any(&text) {
        Ok(conflist) => Some(Text::new(&conflist.without_entry())),
        Err(_) => None,
    };
    ConfigFacts {
        calls: plugin_types(&text).iter().filter(|name| *name == PLUGIN).count(),
        may_call: may_call_plugin(&text),
        bare,
    }
}

/// Returns the originals in the text of the saved state.
pub fn originals(saved: Text) -> Originals {
    ORIGINALS.with(|cache| get_or_make(cache, saved, |saved| Rc::new(parse_originals(saved))))
}

fn parse_originals(saved: Text) -> Vec<(Text, Text)> {
    let mut originals = Vec::new();
    for (name, original) in &saved_state(Some(saved)).originals {
        if let OriginalContent::Text(text) = &original.content {
            originals.push((Text::new(name), Text::new(text)));
        }
    }
    originals
}
