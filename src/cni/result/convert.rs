//! Converts a result to the format of another CNI version, as `pkg/types` 020, 040 and 100 do.
//!
//! Only members that differ between the formats change. Numbers, escapes and unknown members
//! keep their bytes if the other format has a place for them.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::cni::object::Object;
use crate::cni::version::ResultFormat;

/// Why a result cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Decode(#[from] serde_json::Error),
    /// A result before 0.3.0 needs an address: it describes one address for each family.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
}

/// Members of an interface that are new in 1.1.0.
const NEW_INTERFACE_MEMBERS: [&str; 3] = ["mtu", "socketPath", "pciID"];
/// Members of a route before 0.3.0.
const OLD_ROUTE_MEMBERS: [&str; 2] = ["dst", "gw"];
/// Name of each address family: as member before 0.3.0, and as `version` in 0.3.0 to 0.4.0.
const FAMILIES: [(&str, &str); 2] = [("ip4", "4"), ("ip6", "6")];

/// Converts `result` from one format to another, in one or two steps.
pub fn convert(result: &mut Object, from: ResultFormat, to: ResultFormat) -> Result<(), Error> {
    match (from, to) {
        (ResultFormat::V020, ResultFormat::V040) => list_addresses(result),
        (ResultFormat::V020, ResultFormat::V100) => {
            list_addresses(result)?;
            unversion_addresses(result)
        }
        (ResultFormat::V040, ResultFormat::V100) => unversion_addresses(result),
        (ResultFormat::V100, ResultFormat::V040) => version_addresses(result),
        (ResultFormat::V040 | ResultFormat::V100, ResultFormat::V020) => split_addresses(result),
        _ => Ok(()),
    }
}

/// Moves `ip4` and `ip6` to `ips`, and their routes to `routes`.
fn list_addresses(result: &mut Object) -> Result<(), Error> {
    let (mut addresses, mut routes) = (Vec::new(), Vec::new());
    for (key, version) in FAMILIES {
        let Some(family) = result.non_null(key) else {
            continue;
        };
        let mut address: Object = serde_json::from_str(family.get())?;
        routes.extend(list(&address, "routes")?);
        remove(&mut address, &["routes"]);
        for (name, _) in &mut address.0 {
            if name == "ip" {
                "address".clone_into(name);
            }
        }
        address.set("version", to_raw_value(version)?);
        addresses.push(address);
    }
    remove(result, &FAMILIES.map(|(key, _)| key));
    put(result, "ips", &addresses)?;
    put(result, "routes", &routes)
}

/// Removes the `version` of each address, which 1.0.0 and later do not have.
fn unversion_addresses(result: &mut Object) -> Result<(), Error> {
    let mut addresses = list(result, "ips")?;
    for address in &mut addresses {
        remove(address, &["version"]);
    }
    put(result, "ips", &addresses)
}

/// Adds the `version` of each address and removes the newer members of interfaces. The newer
/// members of routes stay, as in `pkg/types`.
fn version_addresses(result: &mut Object) -> Result<(), Error> {
    let mut addresses = list(result, "ips")?;
    for address in &mut addresses {
        let version = if is_ipv6(address.get("address")) { "6" } else { "4" };
        address.set("version", to_raw_value(version)?);
    }
    put(result, "ips", &addresses)?;
    let mut interfaces = list(result, "interfaces")?;
    for interface in &mut interfaces {
        remove(interface, &NEW_INTERFACE_MEMBERS);
    }
    put(result, "interfaces", &interfaces)
}

/// Moves the first address of each family, with the family's routes, to `ip4` and `ip6`. Removes
/// the other addresses and the interfaces.
fn split_addresses(result: &mut Object) -> Result<(), Error> {
    let (addresses, routes) = (list(result, "ips")?, list(result, "routes")?);
    remove(result, &["interfaces", "ips", "routes"]);
    let mut has_address = false;
    for (key, version) in FAMILIES {
        let is_of_family = |value: Option<&RawValue>| is_ipv6(value) == (version == "6");
        let first = addresses.iter().find(|address| {
            address.non_null("address").is_some() && is_of_family(address.get("address"))
        });
        let Some(first) = first else {
            continue;
        };
        has_address = true;
        let mut family = first.clone();
        remove(&mut family, &["version", "interface"]);
        for (name, _) in &mut family.0 {
            if name == "address" {
                "ip".clone_into(name);
            }
        }
        let mut family_routes = Vec::new();
        for route in routes.iter().filter(|route| is_of_family(route.get("dst"))) {
            let mut route = route.clone();
            route.0.retain(|(name, _)| OLD_ROUTE_MEMBERS.contains(&name.as_str()));
            family_routes.push(route);
        }
        put(&mut family, "routes", &family_routes)?;
        result.0.push((key.to_owned(), to_raw_value(&family)?));
    }
    if has_address { Ok(()) } else { Err(Error::NoAddress) }
}

/// Returns the member `key`, a list of objects. Returns an empty list if it is not set.
fn list(object: &Object, key: &str) -> Result<Vec<Object>, Error> {
    match object.non_null(key) {
        Some(value) => Ok(serde_json::from_str(value.get())?),
        None => Ok(Vec::new()),
    }
}

/// Replaces the list `key`, or appends it as the last member. An empty list is not appended.
fn put<T: Serialize>(object: &mut Object, key: &str, elements: &[T]) -> Result<(), Error> {
    let value = to_raw_value(elements)?;
    if object.non_null(key).is_some() {
        object.set(key, value);
    } else if !elements.is_empty() {
        remove(object, &[key]);
        object.0.push((key.to_owned(), value));
    }
    Ok(())
}

fn remove(object: &mut Object, keys: &[&str]) {
    object.0.retain(|(name, _)| !keys.contains(&name.as_str()));
}

/// Whether the JSON text of an address or network is IPv6. Any other text is taken as IPv4.
fn is_ipv6(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get().contains(':'))
}
