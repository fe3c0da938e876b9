//! The repair controller.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::command::repair::main()
}
