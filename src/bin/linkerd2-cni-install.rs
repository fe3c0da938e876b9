//! The node agent; in the image also the repair controller, by that name.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::main()
}
