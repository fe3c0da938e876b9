//! A runtime that sends anything. The fuzz targets use it too.

#[allow(dead_code, reason = "the plugin's tests use all of it")]
#[path = "../support/cni.rs"]
mod cni;

use std::collections::BTreeMap;

use linkerd2_cni::cni::request;
use linkerd2_cni::plugin;
use serde_json::value::RawValue;
use tracing::subscriber::NoSubscriber;

/// An ADD for a container that is no pod, with `stdin`; what goes to stdout, as a result or
/// as an error object.
pub fn add(stdin: &[u8]) -> Result<String, String> {
    // Taken already, so that the plugin's own log does not start; it fails from the second time on.
    let _ = tracing::subscriber::set_global_default(NoSubscriber::default());
    let environment = cni::environment("ADD", "/no/such/netns");
    let env = |name: &str| {
        let (_, value) = environment.iter().find(|(known, _)| *known == name)?;
        Some((*value).into())
    };
    let request = request::read(&env, &mut &*stdin)
        .map_err(|refusal| refusal.error.to_json(&refusal.cni_version))?;
    plugin::run(&request).map_err(|error| error.to_json(&request.cni_version))
}

/// Whether it is what it should be. A result's other members are the previous plugins',
/// whose numbers may be larger than we could read.
pub fn is_answer(stdout: &Result<String, String>) -> bool {
    let (text, wanted): (_, &[&str]) = match stdout {
        Ok(text) => (text, &["cniVersion"]),
        Err(text) => (text, &["cniVersion", "msg"]),
    };
    let answer: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_str(text);
    let is_text = |value: &&RawValue| value.get().starts_with('"');
    answer.is_ok_and(|answer| {
        let mut wanted = wanted.iter();
        let coded = stdout.is_ok() || answer.contains_key("code");
        coded && wanted.all(|key| answer.get(*key).is_some_and(is_text))
    })
}
