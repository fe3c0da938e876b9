//! Entry point of the CNI plugin: reads environment and stdin, prints a result or an error object.

use std::env;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::panic;
use std::process::{self, ExitCode};
use std::time::Duration;

use linkerd2_cni::cni::{Error, request, version};
use linkerd2_cni::deadline::Deadline;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::log::stderr;
use linkerd2_cni::plugin;
use nix::poll::{PollFd, PollFlags};

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let error = Error::new(Failure::Internal, format!("linkerd-cni panicked: {info}"));
        print(&error.to_json(version::CURRENT));
        process::exit(1);
    }));
    let request = request::read(&|name| env::var_os(name), &mut io::stdin().lock());
    let (cni_version, outcome) = match &request {
        Ok(request) => (&*request.cni_version, plugin::run(request)),
        Err(error) => (version::CURRENT, Err(error.clone())),
    };
    match outcome {
        Ok(result) => print(&result),
        Err(error) => {
            print(&error.to_json(cni_version));
            ExitCode::FAILURE
        }
    }
}

/// Writes the response to stdout. Fails if the runtime does not read the response within 10 s.
fn write_to_stdout(text: &str) -> io::Result<()> {
    let deadline = Deadline::after(Duration::from_secs(10));
    let mut stdout = io::stdout().lock();
    // A pipe that poll reports as writable takes 4,096 bytes without blocking (`PIPE_BUF` in
    // pipe(7)), so no write outlasts the deadline.
    for part in text.as_bytes().chunks(4096) {
        deadline.poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLOUT)])?;
        stdout.write_all(part).and_then(|()| stdout.flush())?;
    }
    Ok(())
}

/// Writes `text` to stdout. If that fails, reports the error on stderr, because runtimes show
/// stderr of a plugin that fails without output.
fn print(text: &str) -> ExitCode {
    let Err(error) = write_to_stdout(text) else { return ExitCode::SUCCESS };
    let line = format!(
        "linkerd-cni: cannot write the response to stdout (code {}): {error}\n",
        Failure::IoFailure.code()
    );
    stderr::write_line(line.as_bytes());
    ExitCode::FAILURE
}
