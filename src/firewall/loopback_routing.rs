//! Sets the sysctl `route_localnet`. It makes the kernel accept IPv4 packets for 127.0.0.1 that
//! arrive through an interface other than `lo`. Connections from networks inside a pod need it to
//! reach the proxy.
//!
//! The interfaces of these networks usually do not exist at ADD, so the default for new interfaces
//! is set. The rules still discard all other packets that arrive for a loopback address, see
//! `redirect::rules`. The CNI plugin `portmap` sets the same sysctl on interfaces of the host.

use std::fs;
use std::io;
use std::path::Path;

use super::error::Error;
use crate::redirect::interfaces::Interface;
use crate::redirect::{Family, RuleSpec};

/// Directory of the sysctls of the calling thread's netns. It has one directory for each interface,
/// `default` for new interfaces, and `all`.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
/// Directory of the sysctls that new interfaces start with.
const NEW_INTERFACES: &str = "default";
/// Line in a list of missing rules if the sysctl is not set.
const MISSING_LINE: &str = "sysctl net.ipv4.conf.default.route_localnet=1";

/// Returns whether the rules need the sysctl.
fn is_needed(spec: &RuleSpec) -> bool {
    !spec.redirect.inner_interfaces.is_empty() && spec.families.contains(&Family::Ipv4)
}

/// Sets the sysctl for the pod's inner interfaces and for new interfaces, if the rules of `spec`
/// need it.
pub fn enable_if_needed(spec: &RuleSpec) -> Result<(), Error> {
    if !is_needed(spec) || is_set_for(spec) {
        return Ok(());
    }
    let outward = outward_interfaces(spec).map_err(|error| access_error("list", &error))?;
    // The kernel copies a new default to each interface whose value was never written. Writing 0
    // to the outward interfaces first makes them keep it.
    for name in outward {
        set_if_present(&name, false)?;
    }
    for interface in &spec.redirect.inner_interfaces {
        set_if_present(interface.name(), true)?;
    }
    // Set the default last. Once it is set, a later ADD or CHECK knows that this call completed.
    write(NEW_INTERFACES, true).map_err(|error| access_error("set", &error))
}

/// Sets or clears the sysctl of an interface. Succeeds if the interface does not exist.
fn set_if_present(interface: &str, is_enabled: bool) -> Result<(), Error> {
    match write(interface, is_enabled) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(access_error("set", &error)),
        _ => Ok(()),
    }
}

/// Returns whether the sysctl is set for new interfaces and for each inner interface that exists.
fn is_set_for(spec: &RuleSpec) -> bool {
    let mut names = spec.redirect.inner_interfaces.iter().map(Interface::name);
    is_set(NEW_INTERFACES) && names.all(|name| is_set(name) || !Path::new(&path(name)).exists())
}

/// Returns the names of the interfaces that lead out of the pod and whose sysctl is not set. Where
/// it is set already, it stays set.
fn outward_interfaces(spec: &RuleSpec) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(INTERFACES)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let is_interface = !["all", NEW_INTERFACES, "lo"].contains(&name.as_str());
        let is_inner = spec.redirect.inner_interfaces.iter().any(|inner| inner.name() == name);
        if is_interface && !is_inner && !is_set(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns a line for the list of missing rules if the rules of `spec` need the sysctl and it is
/// not set.
pub fn missing_line(spec: &RuleSpec) -> Option<String> {
    if is_needed(spec) && !is_set_for(spec) { Some(MISSING_LINE.to_owned()) } else { None }
}

fn is_set(interface: &str) -> bool {
    fs::read_to_string(path(interface)).is_ok_and(|value| value.trim() == "1")
}

fn write(interface: &str, is_enabled: bool) -> io::Result<()> {
    fs::write(path(interface), if is_enabled { "1" } else { "0" })
}

fn path(interface: &str) -> String {
    format!("{INTERFACES}/{interface}/route_localnet")
}

fn access_error(action: &str, error: &io::Error) -> Error {
    let problem = format!(
        "cannot {action} the sysctls net.ipv4.conf.*.route_localnet in the pod's network \
         namespace, which the annotation inner-interfaces needs: {error}"
    );
    let remedy = Some(
        "delete the pod, so that the plugin sets them, or check the node's audit log for denials",
    );
    Error::Other { problem, remedy }
}
