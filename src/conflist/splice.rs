//! A conflist: parses it, splices the plugin entry into its text and cuts it out.

use std::ops::Range;

use serde_json::Value;
use serde_json::value::RawValue;

use super::borrowed_object::{BorrowedObject, span};
use super::error::Error;
use super::{Entry, PLUGIN};

/// A conflist, parsed over its text. Edits splice the text and never reserialise it.
#[derive(Debug)]
pub struct Conflist<'a> {
    text: &'a str,
    /// Byte offset of the `[` that opens `plugins`.
    start: usize,
    pub(super) plugins: Vec<Plugin>,
    name: Option<String>,
}

/// Returns the name of the directory from which libcni 1.3 and later takes the plugins of the conflist
/// `text`: that of its network, if the conflist has no plugins itself.
pub(super) fn fragments_dir(text: &str) -> Option<String> {
    let object = BorrowedObject::parse(text).ok()?;
    let plugins = object.get("plugins").map(|plugins| serde_json::from_str(plugins.get()));
    let has_none = plugins
        .is_none_or(|list: Result<Vec<&RawValue>, _>| list.is_ok_and(|list| list.is_empty()));
    let name = object.string("name").filter(|name| !name.is_empty() && !name.contains('/'))?;
    has_none.then_some(name)
}

/// One object in `plugins`.
#[derive(Debug)]
pub(super) struct Plugin {
    /// Byte range of the object in the text.
    span: Range<usize>,
    /// Its `type`, if that is a string.
    plugin_type: Option<String>,
}

impl Plugin {
    fn is_plugin_entry(&self) -> bool {
        self.plugin_type.as_deref() == Some(PLUGIN)
    }
}

impl<'a> Conflist<'a> {
    /// Parses a conflist that the plugin entry can be chained to.
    ///
    /// # Errors
    /// Fails if `text` is not a conflist, or has no plugin besides linkerd-cni.
    pub fn parse_chainable(text: &'a str) -> Result<Conflist<'a>, Error> {
        let conflist = Conflist::parse_any(text)?;
        if conflist.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        // With a current plugin entry this conflist could become loadable. Then the runtime would
        // call only linkerd-cni, and pods would have no network.
        if conflist.plugins.iter().all(Plugin::is_plugin_entry) {
            return Err(Error::NoOtherPlugin);
        }
        Ok(conflist)
    }

    /// Parses any conflist, also one that is empty or calls only linkerd-cni.
    ///
    /// # Errors
    /// Fails if `text` is not JSON or `plugins` is not an array of objects.
    pub fn parse_any(text: &'a str) -> Result<Conflist<'a>, Error> {
        let object = BorrowedObject::parse(text)?;
        let array = object.get("plugins").ok_or(Error::NoPlugins)?;
        let elements: Vec<&RawValue> =
            serde_json::from_str(array.get()).map_err(|_| Error::NoPlugins)?;
        let mut plugins = Vec::with_capacity(elements.len());
        for element in elements {
            let plugin =
                BorrowedObject::parse(element.get()).map_err(|_| Error::PluginNotObject)?;
            plugins.push(Plugin {
                span: span(text, element.get()),
                plugin_type: plugin.plugin_string("type"),
            });
        }
        Ok(Conflist {
            text,
            start: span(text, array.get()).start,
            plugins,
            name: object.string("name"),
        })
    }

    /// Checks that a runtime would load the conflist, as far as its text shows.
    ///
    /// # Errors
    /// Names the first missing field that makes runtimes reject the conflist.
    pub fn check_loadable(&self) -> Result<(), Error> {
        if self.name.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::NoName);
        }
        if self.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        let typed =
            |plugin: &Plugin| plugin.plugin_type.as_deref().is_some_and(|name| !name.is_empty());
        if !self.plugins.iter().all(typed) {
            return Err(Error::NoType);
        }
        Ok(())
    }

    /// Returns whether any plugin entry is present.
    pub fn calls_plugin(&self) -> bool {
        self.plugins.iter().any(Plugin::is_plugin_entry)
    }

    /// Returns whether `entry` is the only plugin entry, behind another plugin. Both are compared as
    /// JSON values: a conflist that another program reformatted needs no rewrite. Nor does one to
    /// which another installer appended its own plugin: if both insisted on the last place, they
    /// would rewrite the conflist forever.
    pub fn has_entry(&self, entry: &Entry) -> bool {
        self.only_entry().is_some_and(|found| {
            serde_json::from_str::<Value>(&self.text[found.span.clone()])
                .is_ok_and(|value| value == entry.value)
        })
    }

    /// Returns the only plugin entry if another plugin runs before it.
    fn only_entry(&self) -> Option<&Plugin> {
        let (_, others) = self.plugins.split_first()?;
        let count = self.plugins.iter().filter(|plugin| plugin.is_plugin_entry()).count();
        others.iter().find(|plugin| plugin.is_plugin_entry() && count == 1)
    }

    /// Returns the text without any plugin entry.
    pub fn without_entry(&self) -> String {
        self.cut().0
    }

    /// Returns the text with `entry` as the only plugin entry: in the place of the one that is there,
    /// if another plugin runs before it, otherwise as the last plugin.
    pub fn with_entry(&self, entry: &Entry) -> String {
        let separator = self.separator();
        // In a conflist with one plugin a line, `entry` gets the indentation of the first plugin.
        let lines = match separator.rfind('\n') {
            Some(newline) => {
                entry.text().replace('\n', &format!("\n{}", &separator[newline + 1..]))
            }
            None => entry.text().to_owned(),
        };
        if let Some(found) = self.only_entry() {
            let (before, after) = (&self.text[..found.span.start], &self.text[found.span.end..]);
            return format!("{before}{lines}{after}");
        }
        let (mut text, end) = self.cut();
        text.insert_str(end, &format!(",{separator}{lines}"));
        text
    }

    /// Returns the white space before the first plugin, to separate the plugin entry like it.
    fn separator(&self) -> &'a str {
        let first = self.plugins.first().map_or(self.start, |p| p.span.start);
        self.text.get(self.start + 1..first).unwrap_or_default()
    }

    /// Returns the text without plugin entries, and the byte offset in it where the last other
    /// plugin ends.
    fn cut(&self) -> (String, usize) {
        let Some(first) = self.plugins.first() else {
            return (self.text.to_owned(), self.text.len());
        };
        let mut text = self.text[..first.span.start].to_owned();
        let mut end = text.len();
        let mut before = first.span.start;
        let mut any = false;
        for plugin in &self.plugins {
            if !plugin.is_plugin_entry() {
                let from = if any { before } else { plugin.span.start };
                text.push_str(&self.text[from..plugin.span.end]);
                end = text.len();
                any = true;
            }
            before = plugin.span.end;
        }
        text.push_str(&self.text[before..]);
        (text, end)
    }
}
