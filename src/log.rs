//! Log lines on stderr: one level, plain or JSON. stdout belongs to the CNI protocol.

pub mod stderr;

use std::panic;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

use stderr::Stderr;

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
        .with_writer(|| Stderr)
        // Otherwise a line that cannot be formatted is reported with `eprintln!`, which panics
        // where stderr fails.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    // The only failure is "already started", which is what the caller wants.
    let _ = match format {
        Format::Plain => builder.try_init(),
        Format::Json => builder.json().try_init(),
    };
}

/// Reports panics the way log lines are written: std's own report waits for a reader.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        stderr::write_line(format!("{info}\n").as_bytes());
    }));
}
