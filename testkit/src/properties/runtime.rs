//! A container runtime that calls the plugin with any stdin, for property tests and fuzz targets.

use std::collections::BTreeMap;
use std::ffi::OsString;

use linkerd2_cni::cni::{request, version};
use linkerd2_cni::plugin;
use serde_json::value::RawValue;
use tracing::subscriber::NoSubscriber;

use crate::cni;

pub const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web";

/// Calls ADD in this process. Returns what the plugin prints: a result, or an error object.
pub fn add(args: &str, stdin: &[u8]) -> Result<String, String> {
    // With a subscriber in place, the plugin does not start its own log. From the second call on
    // this fails, because the subscriber is already there.
    let _ = tracing::subscriber::set_global_default(NoSubscriber::default());
    let request = request::read(&environment(args), &mut &*stdin)
        .map_err(|error| error.to_json(version::CURRENT))?;
    plugin::run(&request).map_err(|error| error.to_json(&request.cni_version))
}

pub fn environment(args: &str) -> impl Fn(&str) -> Option<OsString> {
    let variables = cni::environment("ADD", "/no/such/netns");
    move |name| {
        if name == "CNI_ARGS" {
            return Some(args.into());
        }
        let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
        Some((*value).into())
    }
}

/// Whether `stdout` is a CNI result or error object. Only the members that this plugin writes are
/// checked, because the other members come from the plugins before it.
pub fn is_cni_output(stdout: &Result<String, String>) -> bool {
    let (Ok(text) | Err(text)) = stdout;
    // The values are not decoded, because a number may be too large for any type of Rust.
    let Ok(object) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) else {
        return false;
    };
    let has_string = |key: &str| match object.get(key) {
        Some(value) => value.get().starts_with('"'),
        None => false,
    };
    match stdout {
        Ok(_) => has_string("cniVersion"),
        Err(_) => has_string("cniVersion") && has_string("msg") && object.contains_key("code"),
    }
}
