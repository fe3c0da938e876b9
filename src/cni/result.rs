//! The result of ADD, which is the result of the previous plugins in the chain.

use serde_json::value::to_raw_value;

use super::error::Error;
use super::object::Object;
use super::request::Request;
use super::version::SUPPORTED;
use crate::failure::Failure;

/// Format of a result. The formats differ in the members that contain the IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `ip4` and `ip6`: 0.1.0 and 0.2.0.
    OneAddressPerFamily,
    /// `ips`, whose elements have a `version` (`4` or `6`): 0.3.0 to 0.4.0.
    AddressesWithVersion,
    /// `ips`, whose elements have no `version`: from 1.0.0 on.
    Addresses,
}

impl Format {
    fn of(version: &str) -> Format {
        match version {
            "0.1.0" | "0.2.0" => Format::OneAddressPerFamily,
            "0.3.0" | "0.3.1" | "0.4.0" => Format::AddressesWithVersion,
            _ => Format::Addresses,
        }
    }
}

/// Returns the result of ADD: `prevResult`, byte for byte, with the `cniVersion` of the request.
/// Empty if the request has no `prevResult`. A plugin outputs the result that it received or an
/// equivalent one (CNI spec 1.1, section 2, ADD), in the version of its input (section 5, Success).
///
/// libcni passes on a result in the version that the previous plugin set
/// ([`buildOneConfig`](https://github.com/containernetworking/cni/blob/v1.3.0/libcni/api.go)). The
/// next plugin, if it is written in Go, parses the result as the version of the config, and rejects
/// other formats
/// ([`NewResult`](https://github.com/containernetworking/cni/blob/v1.3.0/pkg/types/100/types.go)).
///
/// Results are not converted between `ips` and the older `ip4` and `ip6`: such a result keeps its
/// version. The runtime reads results of any supported version
/// ([`create.Create`](https://github.com/containernetworking/cni/blob/v1.3.0/pkg/types/create/create.go)).
pub fn pass_through(request: &Request) -> Result<String, Error> {
    let mut result = match request.config.non_null("prevResult") {
        Some(previous) => serde_json::from_str(previous.get()).map_err(json_error)?,
        None => Object::default(),
    };
    let version = result.text("cniVersion").map_err(json_error)?;
    if !version.is_empty() && !SUPPORTED.contains(&version.as_str()) {
        let problem = format!("unsupported CNI result version {version:?}");
        let remedy = "correct or update the plugin before linkerd-cni in the network config";
        return Err(result_error(&problem).with_details(remedy));
    }
    // libcni passes no version if the previous plugin set none. The result then gets the version of
    // the request.
    if version.is_empty() || can_convert(&version, &request.cni_version) {
        if Format::of(&version) == Format::Addresses
            && Format::of(&request.cni_version) == Format::AddressesWithVersion
        {
            set_address_versions(&mut result);
        }
        result.set("cniVersion", to_raw_value(&request.cni_version).map_err(json_error)?);
    }
    serde_json::to_string(&result).map_err(json_error)
}

/// Returns true if a result can be converted from version `from` to `to` by changing only its
/// `cniVersion` and the `version` of its addresses. Returns false if the versions are equal.
fn can_convert(from: &str, to: &str) -> bool {
    let has_ips = |version| Format::of(version) != Format::OneAddressPerFamily;
    from != to && has_ips(from) == has_ips(to)
}

/// Sets the `version` of each address, as libcni does when it converts a result. Leaves malformed
/// `ips` unchanged, because an error in another plugin's result must not fail the pod.
fn set_address_versions(result: &mut Object) {
    let Some(ips) = result.non_null("ips") else { return };
    let Ok(mut ips) = serde_json::from_str::<Vec<Object>>(ips.get()) else { return };
    for ip in &mut ips {
        let is_ipv6 = ip.text("address").is_ok_and(|address| address.contains(':'));
        let version = if is_ipv6 { "6" } else { "4" };
        let Ok(version) = to_raw_value(version) else { return };
        ip.set("version", version);
    }
    if let Ok(ips) = to_raw_value(&ips) {
        result.set("ips", ips);
    }
}

fn json_error(error: serde_json::Error) -> Error {
    result_error(&error.to_string())
}

fn result_error(problem: &str) -> Error {
    Error::new(Failure::DecodingFailure, format!("could not parse prevResult: {problem}"))
}
