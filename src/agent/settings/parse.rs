//! Parses and checks the values of single settings. The error says why a value is invalid. Pure.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Parses a number of seconds, from 1 to 86400 (one day).
pub fn seconds(value: &str) -> Result<Duration, &'static str> {
    match value.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("not a number of seconds from 1 to 86400"),
    }
}

/// Parses `true` or `false`.
pub fn flag(value: &str) -> Result<bool, &'static str> {
    value.parse().map_err(|_| "neither true nor false")
}

/// Parses a listen address. `:9990` means all addresses.
pub fn address(value: &str) -> Result<SocketAddr, &'static str> {
    let host = if value.starts_with(':') { "[::]" } else { "" };
    let address = format!("{host}{value}").parse();
    address.map_err(|_| "not an address and a port, such as 0.0.0.0:9990 or [::]:9990")
}

/// Checks that `value` is a file name without a directory: the agent watches only the net dir
/// itself.
pub fn file_name(value: &str) -> Result<String, &'static str> {
    let mut parts = Path::new(value).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == value => Ok(value.to_owned()),
        _ => Err("not a file name: remove the directory"),
    }
}

/// Checks that `value` is valid as the host of a URL. An IPv6 address may be in brackets.
pub fn api_host(value: &str) -> Result<String, &'static str> {
    let bare = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let fits = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
        None => value.chars().all(is_name) || value.parse::<Ipv6Addr>().is_ok(),
    };
    fits.then(|| value.to_owned()).ok_or(
        "not an IP address or host name: remove scheme, port and blanks, or leave it unset: the \
         kubelet then sets it",
    )
}

/// Checks that `value` is a port from 1 to 65535.
pub fn api_port(value: &str) -> Result<String, &'static str> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u16>() {
        Ok(1..) if digits => Ok(value.to_owned()),
        _ => Err(
            "not a port from 1 to 65535: correct it, or leave it unset: the kubelet then sets it",
        ),
    }
}

/// Joins `dir` and `path` as Go's `path.Join` does, which upstream uses. An absolute `path`
/// stays below `dir`. `.`, `..` and repeated slashes are resolved without reading the disk.
pub fn join(dir: &str, path: &str) -> PathBuf {
    let text = format!("{dir}/{path}");
    let mut clean = PathBuf::new();
    for part in Path::new(&text).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => {
                clean.pop();
            }
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
}
