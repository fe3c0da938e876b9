//! The sysctl `route_localnet`, with which the kernel accepts an IPv4 packet for 127.0.0.1 from
//! another interface than `lo`. Connections from networks inside a pod need it to reach the proxy.
//!
//! The interfaces of these networks do not exist at ADD, so the default for new interfaces is set.
//! `redirect::rules` keeps the loopback addresses closed for all but the redirected connections.
//! The CNI plugin `portmap` sets the same sysctl on interfaces of the host.

use std::fs;
use std::io;
use std::path::Path;

use super::error::Error;
use crate::redirect::interfaces::Interface;
use crate::redirect::{Family, RuleSpec};

/// Directory with one directory of sysctls for each interface in the calling thread's netns, one
/// for new interfaces, and one for all.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
/// The directory for new interfaces.
const NEW_INTERFACES: &str = "default";
/// The line that lists of missing rules have if the sysctl is 0.
const LINE: &str = "sysctl net.ipv4.conf.default.route_localnet=1";

/// Returns whether the rules need the sysctl.
fn is_needed(spec: &RuleSpec) -> bool {
    !spec.redirect.inner_interfaces.is_empty() && spec.families.contains(&Family::Ipv4)
}

/// Sets the sysctl if the rules of `spec` need it: for new interfaces, and for those of the pod's
/// inner side that exist.
pub fn allow(spec: &RuleSpec) -> Result<(), Error> {
    if !is_needed(spec) || is_set_for(spec) {
        return Ok(());
    }
    let outward = closed_interfaces(spec).map_err(|error| access_error("list", &error))?;
    // The kernel copies a new default to the interfaces whose value was never set. So the value of
    // the outward ones is set first.
    for name in outward {
        set_if_present(&name, false)?;
    }
    for interface in &spec.redirect.inner_interfaces {
        set_if_present(interface.name(), true)?;
    }
    // The default comes last: it shows a later ADD, and CHECK, that the others are set, too.
    write(NEW_INTERFACES, true).map_err(|error| access_error("set", &error))
}

/// Sets the sysctl of an interface. The interface may have gone, or not be there yet.
fn set_if_present(interface: &str, is_allowed: bool) -> Result<(), Error> {
    match write(interface, is_allowed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(access_error("set", &error)),
        _ => Ok(()),
    }
}

/// Returns whether the sysctl is set for new interfaces, and for those of the pod's inner side that
/// exist.
fn is_set_for(spec: &RuleSpec) -> bool {
    let mut names = spec.redirect.inner_interfaces.iter().map(Interface::name);
    is_set(NEW_INTERFACES) && names.all(|name| is_set(name) || !Path::new(&path(name)).exists())
}

/// Returns the names of the existing interfaces that are not on the pod's inner side and whose
/// sysctl is 0.
fn closed_interfaces(spec: &RuleSpec) -> io::Result<Vec<String>> {
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

/// Returns the sysctl as a line for lists of missing rules if the rules of `spec` need it and it is
/// 0 for new interfaces or for one of the pod's inner side.
pub fn missing_line(spec: &RuleSpec) -> Option<String> {
    if is_needed(spec) && !is_set_for(spec) { Some(LINE.to_owned()) } else { None }
}

fn is_set(interface: &str) -> bool {
    fs::read_to_string(path(interface)).is_ok_and(|value| value.trim() == "1")
}

fn write(interface: &str, is_allowed: bool) -> io::Result<()> {
    fs::write(path(interface), if is_allowed { "1" } else { "0" })
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
