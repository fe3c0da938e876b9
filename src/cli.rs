//! The command lines of the agent, of the repair controller and of `linkerd cni`.
//!
//! In the image, agent and repair controller are one binary, because they share most of their code.
//! The file name in `argv[0]` tells which of the two to run.

pub mod agent;
pub mod extension;
pub mod probe;
pub mod repair;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// Runs the repair controller if the program was started under its name, else the agent.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next();
    if is_repair_controller(name.as_deref()) { repair::main() } else { agent::main() }
}

/// Returns the exit code of a program, and logs the error if there is one.
fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_repair_controller(program: Option<&OsStr>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name == Some(OsStr::new(crate::repair::CONTROLLER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_selects_agent_or_repair_controller() {
        for (program, expected) in [
            (Some("/usr/lib/linkerd/linkerd-cni-repair-controller"), true),
            (Some("linkerd-cni-repair-controller"), true),
            (Some("/usr/bin/linkerd2-cni-install"), false),
            (Some("/linkerd-cni-repair-controller/x"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(is_repair_controller(program.map(OsStr::new)), expected);
        }
    }
}
