//! The command lines of the agent and of the repair controller.
//!
//! In the image both are one file, since most of it is the same: the name by which it is
//! called says which of the two it is to be.

pub mod agent;
pub mod probe;
pub mod repair;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// Runs the program that the first argument names; the agent by any other name.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next();
    match is_repair_controller(name.as_deref()) {
        true => repair::main(),
        false => agent::main(),
    }
}

fn is_repair_controller(called: Option<&OsStr>) -> bool {
    let name = called.map(Path::new).and_then(Path::file_name);
    name == Some(OsStr::new(crate::repair::CONTROLLER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_name_makes_it_the_repair_controller() {
        for (called, wanted) in [
            (Some("/usr/lib/linkerd/linkerd-cni-repair-controller"), true),
            (Some("linkerd-cni-repair-controller"), true),
            (Some("/usr/bin/linkerd2-cni-install"), false),
            (Some("/linkerd-cni-repair-controller/x"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(is_repair_controller(called.map(OsStr::new)), wanted);
        }
    }
}
