//! Entry point of the repair controller.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::repair::main()
}
