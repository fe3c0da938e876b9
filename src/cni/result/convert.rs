//! A result in the shape of another version, as `pkg/types` 020, 040 and 100 convert.
//!
//! Only what differs between the shapes is touched: numbers, escapes and members that
//! nobody knows keep their text where the other shape has a place for them.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::cni::object::Object;
use crate::cni::version::Shape;

/// Why a result cannot be had in another shape.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Decode(#[from] serde_json::Error),
    /// Results before 0.3.0 are about one address of each family, and nothing else.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
}

/// Members of an interface that came with 1.1.0.
const NEW_OF_INTERFACES: [&str; 3] = ["mtu", "socketPath", "pciID"];
/// What a route has before 0.3.0.
const OLD_OF_ROUTES: [&str; 2] = ["dst", "gw"];
/// The families' members before 0.3.0, and their `version` in 0.3.0 to 0.4.0.
const FAMILIES: [(&str, &str); 2] = [("ip4", "4"), ("ip6", "6")];

/// Changes `result` from one shape to another, step by step between neighbours.
pub fn convert(result: &mut Object, from: Shape, to: Shape) -> Result<(), Error> {
    match (from, to) {
        (Shape::V020, Shape::V040) => list_addresses(result),
        (Shape::V020, Shape::V100) => {
            list_addresses(result)?;
            unversion_addresses(result)
        }
        (Shape::V040, Shape::V100) => unversion_addresses(result),
        (Shape::V100, Shape::V040) => version_addresses(result),
        (Shape::V040 | Shape::V100, Shape::V020) => split_addresses(result),
        _ => Ok(()),
    }
}

/// `ip4` and `ip6` become `ips`, and their routes `routes`.
fn list_addresses(result: &mut Object) -> Result<(), Error> {
    let (mut addresses, mut routes) = (Vec::new(), Vec::new());
    for (key, version) in FAMILIES {
        let Some(family) = result.given(key) else {
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

/// From 1.0.0 on an address tells its family by itself.
fn unversion_addresses(result: &mut Object) -> Result<(), Error> {
    let mut addresses = list(result, "ips")?;
    for address in &mut addresses {
        remove(address, &["version"]);
    }
    put(result, "ips", &addresses)
}

/// Newer members of routes stay, as `pkg/types` has it; those of interfaces go.
fn version_addresses(result: &mut Object) -> Result<(), Error> {
    let mut addresses = list(result, "ips")?;
    for address in &mut addresses {
        let version = if is_ipv6(address.get("address")) {
            "6"
        } else {
            "4"
        };
        address.set("version", to_raw_value(version)?);
    }
    put(result, "ips", &addresses)?;
    let mut interfaces = list(result, "interfaces")?;
    for interface in &mut interfaces {
        remove(interface, &NEW_OF_INTERFACES);
    }
    put(result, "interfaces", &interfaces)
}

/// The first address of each family, with the family's routes; interfaces go.
fn split_addresses(result: &mut Object) -> Result<(), Error> {
    let (addresses, routes) = (list(result, "ips")?, list(result, "routes")?);
    remove(result, &["interfaces", "ips", "routes"]);
    let mut found = false;
    for (key, version) in FAMILIES {
        let is_ours = |value: Option<&RawValue>| is_ipv6(value) == (version == "6");
        let first = addresses
            .iter()
            .find(|address| address.given("address").is_some() && is_ours(address.get("address")));
        let Some(first) = first else {
            continue;
        };
        found = true;
        let mut family = first.clone();
        remove(&mut family, &["version", "interface"]);
        for (name, _) in &mut family.0 {
            if name == "address" {
                "ip".clone_into(name);
            }
        }
        let mut ours = Vec::new();
        for route in routes.iter().filter(|route| is_ours(route.get("dst"))) {
            let mut route = route.clone();
            route
                .0
                .retain(|(name, _)| OLD_OF_ROUTES.contains(&name.as_str()));
            ours.push(route);
        }
        put(&mut family, "routes", &ours)?;
        result.0.push((key.to_owned(), to_raw_value(&family)?));
    }
    if found { Ok(()) } else { Err(Error::NoAddress) }
}

/// A member that is a list of objects; none if it is not given.
fn list(object: &Object, key: &str) -> Result<Vec<Object>, Error> {
    match object.given(key) {
        Some(value) => Ok(serde_json::from_str(value.get())?),
        None => Ok(Vec::new()),
    }
}

/// Puts a list where `key` stands, or last; an empty one only where `key` stands.
fn put<T: Serialize>(object: &mut Object, key: &str, elements: &[T]) -> Result<(), Error> {
    let value = to_raw_value(elements)?;
    if object.given(key).is_some() {
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

/// Of an address or a network as JSON text; what is neither is taken for IPv4.
fn is_ipv6(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get().contains(':'))
}
