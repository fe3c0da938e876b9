//! The result of ADD, which is the result of the previous plugins in the chain.

use serde_json::value::to_raw_value;

use super::error::Error;
use super::object::Object;
use super::request::Request;
use super::version::SUPPORTED;
use crate::failure::Failure;

/// Returns the result of ADD: `prevResult`, byte for byte. Without `prevResult` the result is
/// empty. See CNI spec 1.1, section 2, ADD: a plugin outputs the result it received, or an
/// equivalent one.
///
/// `prevResult` has the `cniVersion` of the request, unless the previous plugin violates the
/// specification. The result then keeps that plugin's version and format: the runtime reads a
/// result of any supported version
/// ([`create.Create`](https://github.com/containernetworking/cni/blob/v1.3.0/pkg/types/create/create.go)),
/// and converts the one that it sends with CHECK and DEL itself
/// ([`getCachedResult`](https://github.com/containernetworking/cni/blob/v1.3.0/libcni/api.go)).
pub fn pass_through(request: &Request) -> Result<String, Error> {
    let mut result = match request.config.non_null("prevResult") {
        Some(previous) => serde_json::from_str(previous.get()).map_err(json_error)?,
        None => Object::default(),
    };
    let version = result.text("cniVersion").map_err(json_error)?;
    if version.is_empty() {
        // libcni omits the version if the previous plugin did. Then it is the request's.
        result.set("cniVersion", to_raw_value(&request.cni_version).map_err(json_error)?);
    } else if !SUPPORTED.contains(&version.as_str()) {
        let problem = format!("unsupported CNI result version {version:?}");
        let remedy = "correct or update the plugin before linkerd-cni in the network config";
        return Err(result_error(&problem).with_details(remedy));
    }
    serde_json::to_string(&result).map_err(json_error)
}

fn json_error(error: serde_json::Error) -> Error {
    result_error(&error.to_string())
}

fn result_error(problem: &str) -> Error {
    Error::new(Failure::DecodingFailure, format!("could not parse prevResult: {problem}"))
}
