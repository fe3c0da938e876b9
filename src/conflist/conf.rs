//! Single-plugin network configs, `.conf` and `.json`: checks them, wraps them into a conflist.

use serde_json::Value;

use super::borrowed_object::BorrowedObject;
use super::error::Error;
use super::{Conflist, PLUGIN};

/// Name for a network config without one. Upstream gives this name to every `.conf` that it wraps.
const DEFAULT_NAME: &str = "k8s-pod-network";

/// Wraps the single plugin of a `.conf` or `.json` into a conflist, still without the plugin entry.
/// The conflist gets the plugin's `name` and `cniVersion`; the plugin stays byte for byte.
///
/// A missing version stays missing: libcni treats that as 0.1.0 in both forms, and a higher version
/// could break the plugin. A missing name becomes upstream's default, as no pod starts without one.
/// A `.conf` that already holds a conflist is returned unchanged.
/// Fails if `conf` is not JSON, has no `type`, or is linkerd-cni itself.
pub fn wrap(conf: &str) -> Result<String, Error> {
    let object = BorrowedObject::parse(conf)?;
    match object.plugin_string("type").as_deref() {
        Some(PLUGIN) => return Err(Error::NoOtherPlugin),
        None if object.get("type").is_none() => {
            return Conflist::parse_chainable(conf).map(|_| conf.to_owned());
        }
        None | Some("") => return Err(Error::NoType),
        Some(_) => {}
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

/// Checks that a runtime would load the single plugin of a `.conf` or `.json`.
/// Fails if `conf` is not a JSON object with a `type`.
pub fn check_conf_loadable(conf: &str) -> Result<(), Error> {
    match BorrowedObject::parse(conf)?.plugin_string("type").as_deref() {
        None | Some("") => Err(Error::NoType),
        Some(_) => Ok(()),
    }
}
