//! Entry point of the repair controller as its own program. The image has a symlink to
//! `linkerd2-cni-install` instead, see `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd2_cni::cli::repair::main()
}
