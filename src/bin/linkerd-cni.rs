//! Entry point of the CNI plugin: reads environment and stdin, prints a result or an error object.

use std::env;
use std::io;
use std::panic;
use std::process::{self, ExitCode};

use linkerd2_cni::cni::{Error, output, request, version};
use linkerd2_cni::failure::Failure;
use linkerd2_cni::log::stderr;
use linkerd2_cni::plugin;

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

/// Writes `text` to stdout. If that fails, reports it on stderr, which runtimes show for a plugin
/// that fails without output.
fn print(text: &str) -> ExitCode {
    let Err(error) = output::print(text) else {
        return ExitCode::SUCCESS;
    };
    let line = format!(
        "linkerd-cni: cannot write the response to stdout (code {}): {error}\n",
        Failure::IoFailure.code()
    );
    stderr::write_line(line.as_bytes());
    ExitCode::FAILURE
}
