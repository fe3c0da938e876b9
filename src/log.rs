//! Starts logging to stderr with one level, as plain text or JSON. stdout is for the CNI result.

pub mod stderr;

use std::panic;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

use stderr::Stderr;

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

/// Parses a log level. Accepts all that upstream's programs accept: the names of Go's logrus
/// (`panic`, `fatal`, `warning`), and the names and numbers of Rust's tracing (`off`, `5`).
pub fn parse_level(text: &str) -> Result<LevelFilter, String> {
    let level = match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" => Some(LevelFilter::ERROR),
        "warning" => Some(LevelFilter::WARN),
        "" => None,
        name => name.parse().ok(),
    };
    match level {
        Some(level) => Ok(level),
        None => {
            Err(format!("\"{text}\" is not a log level: trace, debug, info, warn, error or off"))
        }
    }
}

/// Starts logging for the whole process. A second call has no effect.
pub fn start(level: LevelFilter, format: Format) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Stderr)
        // By default, tracing reports a formatting error with `eprintln!`, which panics if
        // stderr fails.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    // Starting fails only if logging has already started, so the error is ignored.
    let _ = match format {
        Format::Plain => builder.try_init(),
        Format::Json => builder.json().try_init(),
    };
}

/// Writes panic messages with [`stderr::write_line`], because the standard library's hook blocks
/// while no process reads stderr.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        stderr::write_line(format!("{info}\n").as_bytes());
    }));
}
