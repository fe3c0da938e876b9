//! Reads and checks the runtime's request: environment variables and stdin.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use super::error::Error;
use super::object::Object;
use super::version::{self, Command};
use crate::failure::Failure;

/// Largest configuration that is read from stdin, in bytes. A typical one has a few kB, and that
/// of a GC with a thousand attachments some 100 kB.
const STDIN_LIMIT: u64 = 16 << 20;

/// A command with its parameters. Fields whose variable is not set are empty.
#[derive(Debug)]
pub struct Request {
    pub command: Command,
    pub container_id: String,
    /// Path of the pod's netns. May be empty for DEL, when the netns no longer exists.
    pub netns: PathBuf,
    /// `CNI_NETNS_OVERRIDE`: permits a `netns` that is the plugin's own.
    pub netns_override: bool,
    pub args: String,
    pub config: Object,
    /// `cniVersion` of the configuration; 0.1.0 when it has none.
    pub cni_version: String,
}

/// The order of checks is that of `pkg/skel`: environment, stdin, configuration, command, version. VERSION
/// has no configuration here: libcni sends one without name.
pub fn read(
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
) -> Result<Request, Error> {
    let text =
        |name: &str| -> String { env(name).unwrap_or_default().to_string_lossy().into_owned() };
    let command_name = text("CNI_COMMAND");
    let command = Command::parse(&command_name);
    check_environment(&command_name, command, &text)?;
    let config = match command {
        Some(Command::Version) => Object::default(),
        _ => read_config(stdin)?,
    };
    let command =
        command.ok_or_else(|| environment(&format!("unknown CNI_COMMAND: {command_name}")))?;
    let found = config.text("cniVersion").map_err(|error| {
        let problem = format!("decoding version from network config: {error}");
        Error::new(Failure::DecodingFailure, problem)
    })?;
    let cni_version = if found.is_empty() { "0.1.0".to_owned() } else { found };
    version::check(command, &cni_version)?;
    let netns_override = text("CNI_NETNS_OVERRIDE");
    Ok(Request {
        command,
        container_id: text("CNI_CONTAINERID"),
        netns: env("CNI_NETNS").unwrap_or_default().into(),
        netns_override: netns_override == "1" || netns_override.eq_ignore_ascii_case("true"),
        args: text("CNI_ARGS"),
        config,
        cni_version,
    })
}

fn check_environment(
    command_name: &str,
    command: Option<Command>,
    text: &dyn Fn(&str) -> String,
) -> Result<(), Error> {
    let mut missing = Vec::new();
    if command_name.is_empty() {
        missing.push("CNI_COMMAND");
    }
    for &name in command.map_or(&[][..], Command::required) {
        let value = text(name);
        match name {
            _ if value.is_empty() => missing.push(name),
            "CNI_CONTAINERID" if !is_identifier(&value) => {
                return Err(environment("invalid characters in containerID").with_details(value));
            }
            "CNI_IFNAME" => check_interface_name(&value)?,
            _ => {}
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(environment(&format!("required env variables [{}] missing", missing.join(","))))
}

fn environment(problem: &str) -> Error {
    Error::new(Failure::InvalidEnvironment, problem)
}

/// Whether `text` is valid as container ID and network name, by the rule in `pkg/utils`.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn check_interface_name(name: &str) -> Result<(), Error> {
    if name.len() > 15 {
        let details = "interface name should be less than 16 characters";
        return Err(environment("interface name is too long").with_details(details));
    }
    if name == "." || name == ".." {
        return Err(environment("interface name is . or .."));
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return Err(environment("interface name contains / or : or whitespace characters"));
    }
    Ok(())
}

fn read_config(stdin: &mut dyn Read) -> Result<Object, Error> {
    let unread = |problem: String| {
        Error::new(Failure::IoFailure, format!("error reading from stdin: {problem}"))
    };
    let mut bytes = Vec::new();
    let read = stdin.take(STDIN_LIMIT + 1).read_to_end(&mut bytes);
    if read.map_err(|error| unread(error.to_string()))? as u64 > STDIN_LIMIT {
        return Err(unread(format!("more than {STDIN_LIMIT} bytes")));
    }
    let undecodable = |error: serde_json::Error| {
        Error::new(Failure::DecodingFailure, format!("error unmarshall network config: {error}"))
    };
    // Go's decoder reads null as an empty object.
    let config: Option<Object> = serde_json::from_slice(&bytes).map_err(undecodable)?;
    let config = config.unwrap_or_default();
    let name = config.text("name").map_err(undecodable)?;
    if name.is_empty() {
        let missing = Error::new(Failure::InvalidConfig, "missing network name");
        return Err(missing.with_details("add a name to the network config"));
    }
    if !is_identifier(&name) {
        let problem = "invalid characters found in network name";
        return Err(Error::new(Failure::InvalidConfig, problem).with_details(name));
    }
    Ok(config)
}
