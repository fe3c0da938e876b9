//! The CNI plugin: environment and stdin in, a result or an error object out.

use std::env;
use std::io::{self, Write as _};
use std::panic;
use std::process::{self, ExitCode};

use linkerd2_cni::cni::{Error, error::code, request, version};
use linkerd2_cni::plugin;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let error = Error::new(code::INTERNAL, format!("linkerd-cni panicked: {info}"))
            .with_details("this is a bug in linkerd-cni, please report it");
        let _ = print(&error.to_json(version::CURRENT));
        process::exit(1);
    }));
    let request = request::read(&|name| env::var_os(name), &mut io::stdin().lock());
    let (cni_version, outcome) = match &request {
        Ok(request) => (&*request.cni_version, plugin::run(request)),
        Err(refusal) => (&*refusal.cni_version, Err(refusal.error.clone())),
    };
    match outcome {
        Ok(output) if print(&output).is_ok() => ExitCode::SUCCESS,
        // The runtime closed its end: there is nobody to tell.
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let _ = print(&error.to_json(cni_version));
            ExitCode::FAILURE
        }
    }
}

/// stdout belongs to the runtime: one document, written at once.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
