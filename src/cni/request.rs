//! Reads and checks the runtime's request: environment variables and stdin.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use super::error::{Error, code};
use super::object::Object;
use super::version;

/// Largest configuration that is read from stdin, in bytes. A typical one has a few kB, and that
/// of a GC with a thousand attachments some 100 kB.
const STDIN_LIMIT: u64 = 16 << 20;

/// A command of CNI spec 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            _ => return None,
        })
    }

    /// Environment variables that the command requires, in the order in which `pkg/skel`
    /// checks them.
    fn required(self) -> &'static [&'static str] {
        match self {
            Command::Add | Command::Check => {
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
            }
            Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Command::Gc | Command::Status => &["CNI_PATH"],
            Command::Version => &[],
        }
    }
}

/// A command with its parameters. Fields whose variable is not set are empty.
#[derive(Debug)]
pub struct Request {
    pub command: Command,
    pub container_id: String,
    /// Path of the pod's netns. May be empty for DEL, when the netns no longer exists.
    pub netns: PathBuf,
    /// `CNI_NETNS_OVERRIDE`: permits a `netns` that is the plugin's own.
    pub netns_override: bool,
    /// `CNI_ARGS`, unparsed.
    pub args: String,
    /// The plugin's configuration, as the runtime sent it.
    pub config: Object,
    /// `cniVersion` of the configuration; 0.1.0 when it has none.
    pub cni_version: String,
}

/// The error for an invalid request, and the CNI version of its error object.
#[derive(Debug)]
pub struct RequestError {
    pub cni_version: String,
    pub error: Error,
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        RequestError { cni_version: version::CURRENT.to_owned(), error }
    }
}

/// Reads and checks a request. The order of checks is that of `pkg/skel`: environment, stdin,
/// configuration, command, version.
pub fn read(
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
) -> Result<Request, RequestError> {
    let text =
        |name: &str| -> String { env(name).unwrap_or_default().to_string_lossy().into_owned() };
    let command_name = text("CNI_COMMAND");
    let command = Command::parse(&command_name);
    check_environment(&command_name, command, &text)?;
    if command == Some(Command::Version) {
        return Ok(Request {
            command: Command::Version,
            container_id: String::new(),
            netns: PathBuf::new(),
            netns_override: false,
            args: String::new(),
            config: Object::default(),
            cni_version: version::CURRENT.to_owned(),
        });
    }

    let config = read_config(stdin)?;
    let command = command.ok_or_else(|| {
        Error::new(code::INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {command_name}"))
    })?;
    let cni_version = cni_version(&config)?;
    let allowed = match command {
        Command::Check => version::check_command(&cni_version, "0.4.0", "CHECK"),
        Command::Gc => version::check_command(&cni_version, "1.1.0", "GC"),
        Command::Status => version::check_command(&cni_version, "1.1.0", "STATUS"),
        _ => version::check_supported(&cni_version),
    };
    allowed?;
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

/// Fails at the first variable with an invalid value. Missing variables are named together.
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
            "CNI_CONTAINERID" => check_container_id(&value)?,
            "CNI_IFNAME" => check_interface_name(&value)?,
            _ => {}
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        code::INVALID_ENVIRONMENT,
        format!("required env variables [{}] missing", missing.join(",")),
    ))
}

/// Whether `text` is valid as container ID and network name, by the rule in `pkg/utils`.
fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn check_container_id(id: &str) -> Result<(), Error> {
    if is_identifier(id) {
        return Ok(());
    }
    Err(Error::new(code::INVALID_ENVIRONMENT, "invalid characters in containerID").with_details(id))
}

fn check_interface_name(name: &str) -> Result<(), Error> {
    let reject = |msg: &str| Err(Error::new(code::INVALID_ENVIRONMENT, msg));
    if name.len() > 15 {
        return reject("interface name is too long").map_err(|error| {
            error.with_details("interface name should be less than 16 characters")
        });
    }
    if name == "." || name == ".." {
        return reject("interface name is . or ..");
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return reject("interface name contains / or : or whitespace characters");
    }
    Ok(())
}

fn read_config(stdin: &mut dyn Read) -> Result<Object, Error> {
    let mut bytes = Vec::new();
    stdin.take(STDIN_LIMIT + 1).read_to_end(&mut bytes).map_err(|error| {
        Error::new(code::IO_FAILURE, format!("error reading from stdin: {error}"))
    })?;
    if bytes.len() as u64 > STDIN_LIMIT {
        return Err(Error::new(
            code::IO_FAILURE,
            format!("error reading from stdin: more than {STDIN_LIMIT} bytes"),
        ));
    }
    let undecodable = |error: serde_json::Error| {
        Error::new(code::DECODING_FAILURE, format!("error unmarshall network config: {error}"))
    };
    // Go's decoder reads null as an empty object.
    let config: Option<Object> = serde_json::from_slice(&bytes).map_err(undecodable)?;
    let config = config.unwrap_or_default();
    let name: String = match config.non_null("name") {
        Some(name) => serde_json::from_str(name.get()).map_err(undecodable)?,
        None => String::new(),
    };
    if name.is_empty() {
        return Err(Error::new(code::INVALID_CONFIG, "missing network name"));
    }
    if !is_identifier(&name) {
        return Err(Error::new(code::INVALID_CONFIG, "invalid characters found in network name")
            .with_details(name));
    }
    Ok(config)
}

fn cni_version(config: &Object) -> Result<String, Error> {
    let version: String = match config.non_null("cniVersion") {
        Some(version) => serde_json::from_str(version.get()).map_err(|error| {
            Error::new(
                code::DECODING_FAILURE,
                format!("decoding version from network config: {error}"),
            )
        })?,
        None => String::new(),
    };
    Ok(if version.is_empty() { "0.1.0".to_owned() } else { version })
}
