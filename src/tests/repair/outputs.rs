//! A controller whose stdout and stderr cannot be written.

use crate::api::Api;
use crate::controller::{BINARY, Controller};
use crate::unwritable::{closed, full_device, full_pipe};
use crate::{path, stranded};

#[test]
fn stranded_pods_are_deleted_although_stdout_and_stderr_cannot_be_written() {
    for output in [full_device(), closed(), full_pipe()] {
        let api = Api::start();
        api.state().pods = vec![stranded("web")];
        let mut command = output.as_stderr_of(BINARY);
        command.stdout(output.stdio());
        let mut controller = Controller::silent(&api, command);
        controller.counts("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web")], "{}", output.name);
        let (status, _) = controller.end(nix::sys::signal::Signal::SIGTERM);
        assert!(status.success(), "{}: {status}", output.name);
    }
}
