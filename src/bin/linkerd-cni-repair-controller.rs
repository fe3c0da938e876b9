//! The repair controller.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::repair::main()
}
