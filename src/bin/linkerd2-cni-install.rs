//! Entry point of the agent. In the image, the symlink `linkerd-cni-repair-controller` to this
//! program starts the repair controller.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::main()
}
