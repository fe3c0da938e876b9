//! Output of `linkerd cni`: results on stdout, progress on stderr.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;

/// Shows what runs, on a line of its own that the next call overwrites. Only on a terminal.
pub fn progress(what: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() && !is_dumb() {
        // Without a line break at the margin: only one line is overwritten.
        let _ = write!(stderr, "\r\x1b[K\x1b[?7l{what}\x1b[?7h");
        let _ = stderr.flush();
    }
}

pub fn has_color() -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb()
}

fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match printed {
        // The reader, such as `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot write to stdout"),
    }
}
