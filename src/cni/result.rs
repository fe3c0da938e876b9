//! The result of ADD: what the plugins before us answered.

mod convert;

use serde_json::value::RawValue;

use super::error::{Error, code};
use super::object::Object;
use super::request::Request;
use super::version;

/// The result to print: `prevResult` with the request's `cniVersion` in it, else byte
/// for byte (SPEC.md: a plugin that changes nothing outputs an equivalent result). One
/// of a version with another shape is converted. Without a `prevResult`, an empty
/// result of the request's version.
pub fn pass_on(request: &Request) -> Result<String, Error> {
    in_version(request.config.given("prevResult"), &request.cni_version)
}

fn in_version(previous: Option<&RawValue>, wanted: &str) -> Result<String, Error> {
    let mut result = match previous {
        Some(previous) => serde_json::from_str(previous.get()).map_err(unparsable)?,
        None => Object::default(),
    };
    let found: String = match result.given("cniVersion") {
        Some(version) => serde_json::from_str(version.get()).map_err(unparsable)?,
        None => String::new(),
    };
    // libcni leaves it out where the plugin before us did: then it is what was asked for.
    if !found.is_empty() && found != wanted {
        let shapes = version::shape(&found).zip(version::shape(wanted));
        let (from, to) = shapes.ok_or_else(|| foreign(&found))?;
        convert::convert(&mut result, from, to)
            .map_err(|error| undecodable(&format!("{found} to {wanted}: {error}")))?;
    }
    let version = serde_json::value::to_raw_value(wanted).map_err(unparsable)?;
    result.set("cniVersion", version);
    serde_json::to_string(&result).map_err(unparsable)
}

fn foreign(found: &str) -> Error {
    undecodable(&format!("unsupported CNI result version {found:?}"))
        .with_details("the plugin before linkerd-cni answers in a version that is none")
}

fn unparsable(error: serde_json::Error) -> Error {
    undecodable(&error.to_string())
}

fn undecodable(problem: &str) -> Error {
    Error::new(
        code::DECODING_FAILURE,
        format!("could not parse prevResult: {problem}"),
    )
}

#[cfg(test)]
mod tests;
