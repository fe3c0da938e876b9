//! Parses a conflist, splices the plugin entry into its text, and cuts the entry out again. A
//! standalone config, such as a `.conf` that Multus calls, has no list of plugins: the whole object
//! is its only plugin.

use serde_json::Value;
use serde_json::value::RawValue;

use super::borrowed_object::{BorrowedObject, byte_range};
use super::{Entry, Error, PLUGIN};

/// Name for a network config without one. Upstream gives this name to every `.conf` that it wraps.
const DEFAULT_NAME: &str = "k8s-pod-network";

/// A parsed conflist, which borrows its text. Edits splice this text and never reserialise it.
#[derive(Debug)]
pub struct Conflist<'a> {
    text: &'a str,
    /// Byte offset of the `[` that opens `plugins`. `None` for a standalone config.
    array_start: Option<usize>,
    pub(super) plugins: Vec<Plugin<'a>>,
    pub(super) name: Option<String>,
    pub(super) version: Option<String>,
}

/// A plugin of a conflist.
#[derive(Debug)]
pub(super) struct Plugin<'a> {
    /// The object, as a slice of the conflist's text.
    pub text: &'a str,
    pub plugin_type: Option<String>,
}

impl<'a> Plugin<'a> {
    fn parse(text: &'a str) -> Result<Plugin<'a>, Error> {
        let object = BorrowedObject::parse(text).map_err(|_| Error::PluginNotObject)?;
        Ok(Plugin { text, plugin_type: object.plugin_string("type") })
    }

    pub fn is_plugin_entry(&self) -> bool {
        self.plugin_type.as_deref() == Some(PLUGIN)
    }

    fn has_type(&self) -> bool {
        self.plugin_type.as_ref().is_some_and(|name| !name.is_empty())
    }
}

/// A conflist's text without plugin entries.
struct Unchained {
    text: String,
    /// Byte offset where the last plugin ends.
    plugins_end: usize,
}

impl<'a> Conflist<'a> {
    /// Parses a conflist to which the plugin entry can be chained. Fails if `text` is not a
    /// conflist, or has no plugin besides linkerd-cni.
    pub fn parse_chainable(text: &'a str) -> Result<Conflist<'a>, Error> {
        let conflist = Conflist::parse_any(text)?;
        if conflist.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        // A conflist with only the plugin entry is rejected. With a correct entry, the runtime
        // might load it and call only linkerd-cni, and pods would have no network.
        if conflist.plugins.iter().all(Plugin::is_plugin_entry) {
            return Err(Error::NoOtherPlugin);
        }
        Ok(conflist)
    }

    /// Parses any conflist, also one that is empty or calls only linkerd-cni.
    pub fn parse_any(text: &'a str) -> Result<Conflist<'a>, Error> {
        let conflist = Conflist::parse_or_standalone(text)?;
        if conflist.array_start.is_none() {
            return Err(Error::NoPlugins);
        }
        Ok(conflist)
    }

    /// Parses any conflist, or a standalone config, whose only plugin is the whole object. An
    /// object with the key `plugins` is a conflist even if it has a `type`, which runtimes ignore.
    pub(super) fn parse_or_standalone(text: &'a str) -> Result<Conflist<'a>, Error> {
        let object = BorrowedObject::parse(text)?;
        let array = object.get("plugins").map(RawValue::get);
        let mut plugins = Vec::new();
        match array {
            Some(array) => {
                let elements: Vec<&RawValue> =
                    serde_json::from_str(array).map_err(|_| Error::NoPlugins)?;
                for element in elements {
                    plugins.push(Plugin::parse(element.get())?);
                }
            }
            None => plugins.push(Plugin::parse(text.trim())?),
        }
        Ok(Conflist {
            text,
            array_start: array.map(|array| byte_range(text, array).start),
            plugins,
            name: object.string("name"),
            version: object.string("cniVersion"),
        })
    }

    /// Returns the name of the directory from which libcni 1.3 and later takes the plugins of the
    /// conflist. `None` if the conflist has its plugins itself. The directory has the name of the
    /// network.
    pub(super) fn fragments_dir(self) -> Option<String> {
        let has_plugins = self.array_start.is_some() && !self.plugins.is_empty();
        let name = self.name?;
        if has_plugins || name.is_empty() || name.contains('/') {
            return None;
        }
        Some(name)
    }

    /// Fails with the first missing field that makes runtimes reject the conflist.
    pub fn check_loadable(&self) -> Result<(), Error> {
        if self.name.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::NoName);
        }
        if self.plugins.is_empty() {
            return Err(Error::EmptyPlugins);
        }
        if !self.plugins.iter().all(Plugin::has_type) {
            return Err(Error::NoType);
        }
        Ok(())
    }

    /// Returns whether the conflist has a plugin entry.
    pub fn calls_plugin(&self) -> bool {
        self.plugins.iter().any(Plugin::is_plugin_entry)
    }

    /// Returns whether `entry` is the only plugin entry, and another plugin runs before it. Other
    /// plugins may also follow the entry. If it had to be the last one, this agent and an installer
    /// that appends its own plugin would rewrite the conflist in turn forever.
    pub fn has_entry(&self, entry: &Entry) -> bool {
        self.only_entry().is_some_and(|present| entry.matches(present.text))
    }

    /// Returns the plugin entry, if there is only one and another plugin runs before it.
    fn only_entry(&self) -> Option<&Plugin<'a>> {
        let (first, others) = self.plugins.split_first()?;
        let mut entries = others.iter().filter(|plugin| plugin.is_plugin_entry());
        let entry = entries.next()?;
        if first.is_plugin_entry() || entries.next().is_some() {
            return None;
        }
        Some(entry)
    }

    /// Returns the text without plugin entries.
    pub fn without_entry(&self) -> String {
        self.cut_entries(|_| true).text
    }

    /// Returns the text without the plugin entries for which `is_unwanted` returns true.
    pub fn without_entries(&self, is_unwanted: impl Fn(&str) -> bool) -> String {
        self.cut_entries(is_unwanted).text
    }

    /// Returns the text with `entry` as the only plugin entry. If the present entry is the only one
    /// and another plugin runs before it, `entry` replaces it. Otherwise `entry` becomes the last
    /// plugin.
    pub fn with_entry(&self, entry: &Entry) -> String {
        let separator = self.space_before_first_plugin();
        // If each plugin starts on a line of its own, the lines of `entry` get the indentation of
        // the first plugin.
        let entry_text = match separator.rfind('\n') {
            Some(newline) => {
                let indentation = &separator[newline + 1..];
                entry.text().replace('\n', &format!("\n{indentation}"))
            }
            None => entry.text().to_owned(),
        };
        if let Some(present) = self.only_entry() {
            let range = byte_range(self.text, present.text);
            let before = &self.text[..range.start];
            let after = &self.text[range.end..];
            return format!("{before}{entry_text}{after}");
        }
        let Unchained { mut text, plugins_end } = self.cut_entries(|_| true);
        text.insert_str(plugins_end, &format!(",{separator}{entry_text}"));
        text
    }

    /// Returns the white space between the `[` that opens `plugins` and the first plugin.
    fn space_before_first_plugin(&self) -> &'a str {
        let (Some(array_start), Some(first)) = (self.array_start, self.plugins.first()) else {
            return "";
        };
        &self.text[array_start + 1..byte_range(self.text, first.text).start]
    }

    /// Cuts the plugin entries for which `is_unwanted` returns true out of the text. An entry is
    /// cut together with the separator before it. An entry before all other plugins is cut together
    /// with the separator after it.
    fn cut_entries(&self, is_unwanted: impl Fn(&str) -> bool) -> Unchained {
        let Some(first) = self.plugins.first() else {
            return Unchained { text: self.text.to_owned(), plugins_end: self.text.len() };
        };
        let first_start = byte_range(self.text, first.text).start;
        let mut text = self.text[..first_start].to_owned();
        let mut plugins_end = text.len();
        let mut has_plugin = false;
        // Byte offset where the plugin before the one of this iteration ends.
        let mut previous_end = first_start;
        for plugin in &self.plugins {
            let range = byte_range(self.text, plugin.text);
            let is_kept = !plugin.is_plugin_entry() || !is_unwanted(plugin.text);
            if is_kept {
                let start = if has_plugin { previous_end } else { range.start };
                text.push_str(&self.text[start..range.end]);
                plugins_end = text.len();
                has_plugin = true;
            }
            previous_end = range.end;
        }
        text.push_str(&self.text[previous_end..]);
        Unchained { text, plugins_end }
    }
}

/// Wraps the single plugin of a `.conf` or `.json` into a conflist, still without the plugin entry.
/// The conflist gets the plugin's `name` and `cniVersion`; the plugin stays byte for byte.
///
/// A missing version stays missing: libcni then assumes 0.1.0, in a conflist as in a `.conf`, and a
/// higher version could break the plugin. A missing name becomes upstream's default, because no pod
/// starts without a name. Fails if no runtime would load `conf`, or if its plugin is linkerd-cni.
pub fn wrap(conf: &str) -> Result<String, Error> {
    check_conf_loadable(conf)?;
    let object = BorrowedObject::parse(conf)?;
    if object.plugin_string("type").as_deref() == Some(PLUGIN) {
        return Err(Error::NoOtherPlugin);
    }
    let name = object.plugin_string("name").filter(|name| !name.is_empty());
    let name = Value::from(name.as_deref().unwrap_or(DEFAULT_NAME));
    let version = match object.plugin_string("cniVersion") {
        Some(version) => format!("  \"cniVersion\": {},\n", Value::from(version)),
        None => String::new(),
    };
    let plugin = conf.trim();
    Ok(format!("{{\n{version}  \"name\": {name},\n  \"plugins\": [\n    {plugin}\n  ]\n}}\n"))
}

/// Fails if no runtime would load `conf`, the single plugin of a `.conf` or `.json`.
pub fn check_conf_loadable(conf: &str) -> Result<(), Error> {
    let object = BorrowedObject::parse(conf)?;
    match object.plugin_string("type").as_deref() {
        None | Some("") if object.get("plugins").is_some() => Err(Error::ListInConf),
        None | Some("") => Err(Error::NoType),
        Some(_) => Ok(()),
    }
}

/// The plugin entry found in a network config, with what a runtime adds before it runs the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedEntry<'a> {
    /// The entry's JSON object, byte for byte.
    pub text: &'a str,
    pub name: Option<String>,
    pub version: Option<String>,
    /// Whether another plugin runs before linkerd-cni, so that the runtime passes a `prevResult`.
    pub has_previous: bool,
}

/// Returns the first plugin entry of a network config.
pub fn plugin_entry(text: &str) -> Option<ChainedEntry<'_>> {
    let config = Conflist::parse_or_standalone(text).ok()?;
    let position = config.plugins.iter().position(Plugin::is_plugin_entry)?;
    Some(ChainedEntry {
        text: config.plugins[position].text,
        name: config.name,
        version: config.version,
        has_previous: position > 0,
    })
}

/// Returns the JSON object of each plugin entry, byte for byte. Empty if `text` is invalid.
pub fn plugin_entries(text: &str) -> Vec<&str> {
    let Ok(config) = Conflist::parse_or_standalone(text) else {
        return Vec::new();
    };
    let entries = config.plugins.into_iter().filter(Plugin::is_plugin_entry);
    entries.map(|entry| entry.text).collect()
}

/// Returns the types of a network config's plugins, in their order. Empty if `text` is invalid.
pub fn plugin_types(text: &str) -> Vec<String> {
    match Conflist::parse_or_standalone(text) {
        Ok(config) => config.plugins.into_iter().filter_map(|plugin| plugin.plugin_type).collect(),
        Err(_) => Vec::new(),
    }
}
