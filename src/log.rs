//! Log lines on stderr: one level, plain or JSON. stdout belongs to the CNI protocol.

use std::io;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Plain,
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "plain" => Ok(Format::Plain),
            "json" => Ok(Format::Json),
            _ => Err(format!("\"{text}\" is not a log format: plain or json")),
        }
    }
}

/// Reads a level by the names that upstream's programs take: logrus' (`panic`,
/// `fatal`, `warning`), tracing's (`off`) and those in common.
pub fn level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "panic" | "fatal" | "error" => Ok(LevelFilter::ERROR),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!(
            "\"{text}\" is not a log level: trace, debug, info, warn, error or off"
        )),
    }
}

/// Starts logging for the whole process. Call once; a second call changes nothing.
pub fn start(level: LevelFilter, format: Format) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false);
    // The only failure is "already started", which is what the caller wants.
    let _ = match format {
        Format::Plain => builder.try_init(),
        Format::Json => builder.json().try_init(),
    };
}
