//! Parses and checks the values of single settings. Pure.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::Error;
use crate::log;

/// Parses a log level.
pub fn level(value: String) -> Result<LevelFilter, Error> {
    log::level(&value).map_err(|message| Error::LogLevel { value, message })
}

/// Parses a log format.
pub fn format(value: String) -> Result<log::Format, Error> {
    value.parse().map_err(|message| Error::Value { name: "LINKERD_CNI_LOG_FORMAT", value, message })
}

/// Parses a number of seconds, from 1 to 86400 (one day).
pub fn seconds(name: &'static str, value: String) -> Result<Duration, Error> {
    match value.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::Value {
            name,
            value,
            message: "not a number of seconds from 1 to 86400".into(),
        }),
    }
}

/// Parses `true` or `false`.
pub fn flag(name: &'static str, value: String) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::Value {
        name,
        value,
        message: "neither true nor false".into(),
    })
}

/// Parses a listen address. `:9990` means all addresses.
pub fn address(value: String) -> Result<SocketAddr, Error> {
    let text = match value.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => value.clone(),
    };
    text.parse().map_err(|_| Error::Value {
        name: "LINKERD_CNI_ADMIN_ADDR",
        value,
        message: "not an address and a port, such as 0.0.0.0:9990 or [::]:9990".into(),
    })
}

/// Checks that `value` is a file name without a directory: the agent watches only the net dir
/// itself.
pub fn file_name(name: &'static str, value: String) -> Result<String, Error> {
    let mut parts = Path::new(&value).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == value.as_str() => Ok(value),
        _ => Err(Error::Value {
            name,
            value,
            message: "not a file name: remove the directory".into(),
        }),
    }
}

/// Checks that `value` is valid as the host of a URL. An IPv6 address may be in brackets.
pub fn api_host(value: String) -> Result<String, Error> {
    let bare = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let fits = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
        None => value.chars().all(is_name) || value.parse::<Ipv6Addr>().is_ok(),
    };
    match fits {
        true => Ok(value),
        false => Err(Error::Value {
            name: "KUBERNETES_SERVICE_HOST",
            value,
            message: "not an IP address or host name: remove scheme, port and blanks, or \
                      leave it unset: the kubelet then sets it"
                .into(),
        }),
    }
}

/// Checks that `value` is a port from 1 to 65535.
pub fn api_port(value: String) -> Result<String, Error> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u16>() {
        Ok(1..) if digits => Ok(value),
        _ => Err(Error::Value {
            name: "KUBERNETES_SERVICE_PORT",
            value,
            message: "not a port from 1 to 65535: correct it, or leave it unset: the \
                      kubelet then sets it"
                .into(),
        }),
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
