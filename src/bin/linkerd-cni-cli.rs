//! Entry point of `linkerd cni`, which administrators install as `linkerd-cni`. Not in the image.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::extension::main()
}
