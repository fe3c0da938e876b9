//! Our entry in somebody else's network configuration: put it in, take it out. Pure.
//!
//! The configuration is never re-serialised. Our entry is spliced into the text and cut
//! out of it, so that every other byte stays what its owner wrote: key order, number
//! forms and white space survive (D-22), and taking out undoes putting in exactly.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

mod entries;
#[cfg(test)]
mod generated;
pub mod mode;
mod naming;
pub mod net_dir;
pub mod plan;
pub mod saved_state;
mod settings;
mod standalone;
#[cfg(test)]
mod tests;

pub use entries::{PluginEntry, plugin_entry, plugin_types};
pub use naming::may_call_plugin;

/// The `type` of our entry, which is the name of the plugin's file on the host.
pub const PLUGIN: &str = "linkerd-cni";

/// Stands in the template for the kubeconfig's path on the host.
pub const PLACEHOLDER: &str = "__KUBECONFIG_FILEPATH__";

/// A network needs a name; upstream gives this one to every `.conf` that it wraps.
const DEFAULT_NAME: &str = "k8s-pod-network";

/// Why a text is no configuration that our entry can be put into. No content is quoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("is empty")]
    Empty,
    #[error("is not JSON (line {line}, column {column})")]
    Syntax { line: usize, column: usize },
    #[error("is not a JSON object")]
    NotObject,
    #[error("has no array \"plugins\"")]
    NoPlugins,
    #[error("has an empty list of plugins")]
    EmptyPlugins,
    #[error("has a plugin that is not a JSON object")]
    PluginNotObject,
    #[error("has no plugin but {PLUGIN}")]
    OnlyOurs,
    #[error("has no \"name\"")]
    NoName,
    #[error("has a plugin without \"type\"")]
    NoType,
    #[error("has not the type \"{PLUGIN}\"")]
    NotOurType,
}

/// Our entry: the template, verbatim but for the kubeconfig's path and the settings that
/// [`Entry::with_setting`] adds.
#[derive(Clone, Debug)]
pub struct Entry {
    text: String,
    value: Value,
}

impl Entry {
    /// Makes the entry from `template`, which must be a JSON object with our type.
    pub fn new(template: &str, kubeconfig: &str) -> Result<Entry, Error> {
        let text = template.replace(PLACEHOLDER, kubeconfig).trim().to_owned();
        let plugin = Object::parse(&text)?;
        if plugin.string("type").as_deref() != Some(PLUGIN) {
            return Err(Error::NotOurType);
        }
        let value = serde_json::from_str(&text).map_err(|error| syntax(&text, &error))?;
        Ok(Entry { text, value })
    }

    /// The JSON as it goes into a list.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A list of plugins, over the text that it was read from.
#[derive(Debug)]
pub struct List<'a> {
    text: &'a str,
    /// Where `[` of the plugins is.
    start: usize,
    plugins: Vec<Plugin>,
    name: Option<String>,
}

#[derive(Debug)]
struct Plugin {
    span: Range<usize>,
    kind: Option<String>,
}

impl Plugin {
    fn is_ours(&self) -> bool {
        self.kind.as_deref() == Some(PLUGIN)
    }
}

impl<'a> List<'a> {
    /// Reads a list that our entry can be put into: one with a plugin other than ours.
    pub fn parse(text: &'a str) -> Result<List<'a>, Error> {
        let list = List::read(text)?;
        if list.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        // Patched, such a list would become loadable and a pod's only network.
        if list.plugins.iter().all(Plugin::is_ours) {
            return Err(Error::OnlyOurs);
        }
        Ok(list)
    }

    /// Reads any list.
    pub fn read(text: &'a str) -> Result<List<'a>, Error> {
        let object = Object::parse(text)?;
        let array = object.get("plugins").ok_or(Error::NoPlugins)?;
        let elements: Vec<&RawValue> =
            serde_json::from_str(array.get()).map_err(|_| Error::NoPlugins)?;
        let mut plugins = Vec::with_capacity(elements.len());
        for element in elements {
            let plugin = Object::parse(element.get()).map_err(|_| Error::PluginNotObject)?;
            plugins.push(Plugin {
                span: span(text, element.get()),
                kind: plugin.string("type"),
            });
        }
        Ok(List {
            text,
            start: span(text, array.get()).start,
            plugins,
            name: object.string("name"),
        })
    }

    /// Whether a runtime would load the list, as far as that can be told from the text.
    pub fn loadable(&self) -> Result<(), Error> {
        if self.name.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::NoName);
        }
        if self.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        let typed = |plugin: &Plugin| plugin.kind.as_deref().is_some_and(|kind| !kind.is_empty());
        if !self.plugins.iter().all(typed) {
            return Err(Error::NoType);
        }
        Ok(())
    }

    /// Whether our plugin is called at all.
    pub fn names_us(&self) -> bool {
        self.plugins.iter().any(Plugin::is_ours)
    }

    /// Whether `entry` is there once, last and with this meaning. The form may differ:
    /// a list that somebody formatted anew is not rewritten for that.
    pub fn carries(&self, entry: &Entry) -> bool {
        let ours = self.plugins.iter().filter(|plugin| plugin.is_ours());
        let Some(last) = self.plugins.last() else {
            return false;
        };
        ours.count() == 1
            && last.is_ours()
            && serde_json::from_str::<Value>(&self.text[last.span.clone()])
                .is_ok_and(|value| value == entry.value)
    }

    /// The text without any entry of ours.
    pub fn without(&self) -> String {
        self.cut().0
    }

    /// The text with `entry` as the last plugin and no other entry of ours.
    pub fn with(&self, entry: &Entry) -> String {
        let (mut text, end) = self.cut();
        let gap = self.gap();
        // In a list with one plugin a line, our lines stand below the others' first ones.
        let lines = match gap.rfind('\n') {
            Some(newline) => entry
                .text
                .replace('\n', &format!("\n{}", &gap[newline + 1..])),
            None => entry.text.clone(),
        };
        text.insert_str(end, &format!(",{gap}{lines}"));
        text
    }

    /// The white space before the first plugin, which is how the owner separates them.
    fn gap(&self) -> &'a str {
        let first = self.plugins.first().map_or(self.start, |p| p.span.start);
        self.text.get(self.start + 1..first).unwrap_or_default()
    }

    /// The text without our entries, and where the last other plugin ends in it.
    fn cut(&self) -> (String, usize) {
        let Some(first) = self.plugins.first() else {
            return (self.text.to_owned(), self.text.len());
        };
        let mut text = self.text[..first.span.start].to_owned();
        let mut end = text.len();
        let mut before = first.span.start;
        let mut any = false;
        for plugin in &self.plugins {
            if !plugin.is_ours() {
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

/// Makes the list, still without our entry, that a runtime would make of the single
/// plugin in a `.conf` or `.json`: its own name and version (D-14), the plugin verbatim.
///
/// Without a version the list has none either: libcni treats both as 0.1.0, and another
/// plugin's version is not ours to raise. Without a name, with which no pod could be
/// started, it gets upstream's. A list inside a `.conf` is taken as it is.
pub fn wrap(conf: &str) -> Result<String, Error> {
    let object = Object::parse(conf)?;
    if object.get("type").is_none() {
        return List::parse(conf).map(|_| conf.to_owned());
    }
    match object.string("type").as_deref() {
        Some(PLUGIN) => return Err(Error::OnlyOurs),
        None | Some("") => return Err(Error::NoType),
        Some(_) => {}
    }
    let name = object.string("name").filter(|name| !name.is_empty());
    let name = Value::from(name.as_deref().unwrap_or(DEFAULT_NAME));
    let version = match object.string("cniVersion") {
        Some(version) => format!("  \"cniVersion\": {},\n", Value::from(version)),
        None => String::new(),
    };
    let plugin = conf.trim();
    Ok(format!(
        "{{\n{version}  \"name\": {name},\n  \"plugins\": [\n    {plugin}\n  ]\n}}\n"
    ))
}

/// Whether a runtime would load the single plugin in a `.conf` or `.json`.
pub fn conf_loadable(conf: &str) -> Result<(), Error> {
    match Object::parse(conf)?.string("type").as_deref() {
        None | Some("") => Err(Error::NoType),
        Some(_) => Ok(()),
    }
}

/// The members of a JSON object in their order, values as text.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Object<'a> {
    fn parse(text: &'a str) -> Result<Object<'a>, Error> {
        serde_json::from_str(text).map_err(|error| syntax(text, &error))
    }

    /// The last one counts, as in Go.
    fn get(&self, key: &str) -> Option<&'a RawValue> {
        let mut members = self.0.iter().rev();
        members.find(|(name, _)| name == key).map(|(_, raw)| *raw)
    }

    fn string(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

fn syntax(text: &str, error: &serde_json::Error) -> Error {
    if text.trim().is_empty() {
        Error::Empty
    } else if error.is_data() {
        Error::NotObject
    } else {
        Error::Syntax {
            line: error.line(),
            column: error.column(),
        }
    }
}

/// Where `part`, which was borrowed from `text`, is in it.
fn span(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}
