//! The result of ADD: what the plugins before us answered, untouched.

use serde_json::value::RawValue;

use super::error::{Error, code};
use super::object::Object;
use super::request::Request;
use super::version;

/// The result to print: `prevResult` byte for byte, with the request's `cniVersion`
/// in it (SPEC.md: a plugin that changes nothing outputs an equivalent result).
/// Without a `prevResult`, an empty result of that version.
pub fn pass_on(request: &Request) -> Result<String, Error> {
    let mut result = match request.config.given("prevResult") {
        Some(previous) => serde_json::from_str(previous.get()).map_err(undecodable)?,
        None => Object::default(),
    };
    let previous: String = match result.given("cniVersion") {
        Some(version) => serde_json::from_str(version.get()).map_err(undecodable)?,
        None => String::new(),
    };
    if !previous.is_empty() && !version::same_family(&previous, &request.cni_version) {
        return Err(Error::new(
            code::DECODING_FAILURE,
            format!(
                "prevResult has cniVersion \"{previous}\", the configuration \"{}\"",
                request.cni_version
            ),
        )
        .with_details(
            "the plugin before linkerd-cni answers in another version than it is asked in",
        ));
    }
    result.set("cniVersion", string(&request.cni_version)?);
    serde_json::to_string(&result).map_err(undecodable)
}

fn string(text: &str) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(text).map_err(undecodable)
}

fn undecodable(error: serde_json::Error) -> Error {
    Error::new(
        code::DECODING_FAILURE,
        format!("could not parse prevResult: {error}"),
    )
}
