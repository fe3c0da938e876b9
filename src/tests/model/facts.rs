//! What the product's parsers say about a text. Each text is parsed once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use linkerd2_cni::conflist::net_dir::may_call_plugin;
use linkerd2_cni::conflist::saved_state::OriginalContent;
use linkerd2_cni::conflist::{Conflist, PLUGIN, plugin_types};

use crate::node::saved_state;
use crate::text::Text;

/// Returns what `make` makes of `text`, once a thread.
fn once<V: Clone>(
    known: &RefCell<HashMap<Text, V>>,
    text: Text,
    make: impl FnOnce(Text) -> V,
) -> V {
    known.borrow_mut().entry(text).or_insert_with(|| make(text)).clone()
}

pub struct ConfigFacts {
    /// How often it calls the plugin.
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

pub fn config(text: Text) -> Rc<ConfigFacts> {
    let make = |text: Text| {
        let conflist = Conflist::parse_any(&text).ok();
        Rc::new(ConfigFacts {
            calls: plugin_types(&text).iter().filter(|name| *name == PLUGIN).count(),
            may_call: may_call_plugin(&text),
            bare: conflist.map(|conflist| Text::new(&conflist.without_entry())),
        })
    };
    CONFIGS.with(|known| once(known, text, make))
}

pub fn originals(saved: Text) -> Originals {
    let make = |saved| {
        let originals = saved_state(Some(saved)).originals;
        let texts = originals.iter().filter_map(|(name, original)| match &original.content {
            OriginalContent::Text(text) => Some((Text::new(name), Text::new(text))),
            OriginalContent::Link(_) => None,
        });
        Rc::new(texts.collect())
    };
    ORIGINALS.with(|known| once(known, saved, make))
}
