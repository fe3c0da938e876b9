//! Entry point of the agent. In the image, this file is also the repair controller, under that
//! program's name.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::main()
}
