//! Reads and checks the runtime's request: environment variables and stdin.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use super::error::Error;
use super::object::Object;
use super::version::{self, Command};
use crate::failure::Failure;

/// Maximum size of the network config on stdin, in bytes. Typical configs have a few kB. The config
/// of a GC with a thousand attachments has some 100 kB.
const STDIN_LIMIT: u64 = 16 << 20;

/// A command with its parameters. A field is empty if its environment variable is not set.
#[derive(Debug)]
pub struct Request {
    pub command: Command,
    pub container_id: String,
    /// Path of the pod's netns. May be empty for DEL, when the netns no longer exists.
    pub netns: PathBuf,
    /// `CNI_NETNS_OVERRIDE`: allows `netns` to be the plugin's own netns.
    pub netns_override: bool,
    pub args: String,
    pub config: Object,
    /// `cniVersion` of the network config, or 0.1.0 if the config has none.
    pub cni_version: String,
}

/// Reads and checks the request in the same order as `pkg/skel`: environment, stdin, network
/// config, command, version. Does not read the config of VERSION, because libcni sends a config
/// without a name, which would be rejected.
pub fn read(
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
) -> Result<Request, Error> {
    let environment = Environment(env);
    let command_name = environment.text("CNI_COMMAND");
    let command = Command::parse(&command_name);
    check_environment(&command_name, command, &environment)?;
    let config = match command {
        Some(Command::Version) => Object::default(),
        _ => read_config(stdin)?,
    };
    let Some(command) = command else {
        return Err(environment_error(&format!("unknown CNI_COMMAND: {command_name}")));
    };
    let cni_version = read_version(&config)?;
    version::check(command, &cni_version)?;
    let netns_override = environment.text("CNI_NETNS_OVERRIDE");
    Ok(Request {
        command,
        container_id: environment.text("CNI_CONTAINERID"),
        netns: env("CNI_NETNS").unwrap_or_default().into(),
        netns_override: netns_override == "1" || netns_override.eq_ignore_ascii_case("true"),
        args: environment.text("CNI_ARGS"),
        config,
        cni_version,
    })
}

/// The environment variables of the request.
struct Environment<'e>(&'e dyn Fn(&str) -> Option<OsString>);

impl Environment<'_> {
    /// Returns the value of a variable. Empty if the variable is not set.
    fn text(&self, name: &str) -> String {
        (self.0)(name).unwrap_or_default().to_string_lossy().into_owned()
    }
}

fn check_environment(
    command_name: &str,
    command: Option<Command>,
    environment: &Environment<'_>,
) -> Result<(), Error> {
    let mut missing = Vec::new();
    if command_name.is_empty() {
        missing.push("CNI_COMMAND");
    }
    let required = match command {
        Some(command) => command.required(),
        None => &[],
    };
    for &name in required {
        let value = environment.text(name);
        if value.is_empty() {
            missing.push(name);
        } else if name == "CNI_CONTAINERID" && !is_identifier(&value) {
            let problem = "invalid characters in containerID";
            return Err(environment_error(problem).with_details(value));
        } else if name == "CNI_IFNAME" {
            check_interface_name(&value)?;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(environment_error(&format!("required env variables [{}] missing", missing.join(","))))
}

fn environment_error(problem: &str) -> Error {
    Error::new(Failure::InvalidEnvironment, problem)
}

/// Returns the `cniVersion` of the network config, or 0.1.0 if the config has none.
fn read_version(config: &Object) -> Result<String, Error> {
    let version = config.text("cniVersion").map_err(|error| {
        let problem = format!("decoding version from network config: {error}");
        Error::new(Failure::DecodingFailure, problem)
    })?;
    if version.is_empty() { Ok("0.1.0".to_owned()) } else { Ok(version) }
}

/// Returns true if `text` is a valid container ID or network name, as defined in `pkg/utils`.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn check_interface_name(name: &str) -> Result<(), Error> {
    if name.len() > 15 {
        let details = "interface name should be less than 16 characters";
        return Err(environment_error("interface name is too long").with_details(details));
    }
    if name == "." || name == ".." {
        return Err(environment_error("interface name is . or .."));
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return Err(environment_error("interface name contains / or : or whitespace characters"));
    }
    Ok(())
}

fn read_config(stdin: &mut dyn Read) -> Result<Object, Error> {
    // Accept `null` as an empty object, as Go's decoder does.
    let config: Option<Object> =
        serde_json::from_slice(&read_stdin(stdin)?).map_err(config_error)?;
    let config = config.unwrap_or_default();
    let name = config.text("name").map_err(config_error)?;
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

fn config_error(error: serde_json::Error) -> Error {
    Error::new(Failure::DecodingFailure, format!("error unmarshall network config: {error}"))
}

fn read_stdin(stdin: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = stdin.take(STDIN_LIMIT + 1).read_to_end(&mut bytes);
    read.map_err(|error| stdin_error(&error.to_string()))?;
    if bytes.len() as u64 > STDIN_LIMIT {
        return Err(stdin_error(&format!("more than {STDIN_LIMIT} bytes")));
    }
    Ok(bytes)
}

fn stdin_error(problem: &str) -> Error {
    Error::new(Failure::IoFailure, format!("error reading from stdin: {problem}"))
}
