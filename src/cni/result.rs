//! The result of ADD, which is the result of the previous plugins in the chain.

mod convert;

use serde_json::value::RawValue;

use super::error::{Error, code};
use super::object::Object;
use super::request::Request;
use super::version;

/// Returns the result of ADD: `prevResult` with the request's `cniVersion`.
///
/// The other members keep their bytes unless that version has a different [`version::ResultFormat`];
/// then the result is converted. Without `prevResult` the result is empty. See CNI spec 1.1, section 2,
/// ADD: a plugin outputs the result it received, or an equivalent one.
pub fn pass_through(request: &Request) -> Result<String, Error> {
    convert_to(request.config.non_null("prevResult"), &request.cni_version)
}

fn convert_to(previous: Option<&RawValue>, wanted: &str) -> Result<String, Error> {
    let mut result = match previous {
        Some(previous) => serde_json::from_str(previous.get()).map_err(unparsable)?,
        None => Object::default(),
    };
    let found: String = match result.non_null("cniVersion") {
        Some(version) => serde_json::from_str(version.get()).map_err(unparsable)?,
        None => String::new(),
    };
    // libcni omits `cniVersion` if the previous plugin did. Then it is the request's version.
    if !found.is_empty() && found != wanted {
        let formats = version::result_format(&found).zip(version::result_format(wanted));
        let (from, to) = formats.ok_or_else(|| unsupported_version(&found))?;
        convert::convert(&mut result, from, to)
            .map_err(|error| undecodable(&format!("{found} to {wanted}: {error}")))?;
    }
    let version = serde_json::value::to_raw_value(wanted).map_err(unparsable)?;
    result.set("cniVersion", version);
    serde_json::to_string(&result).map_err(unparsable)
}

fn unsupported_version(found: &str) -> Error {
    undecodable(&format!("unsupported CNI result version {found:?}"))
        .with_details("correct or update the plugin before linkerd-cni in the network config")
}

fn unparsable(error: serde_json::Error) -> Error {
    undecodable(&error.to_string())
}

fn undecodable(problem: &str) -> Error {
    Error::new(code::DECODING_FAILURE, format!("could not parse prevResult: {problem}"))
}

#[cfg(test)]
mod tests;
