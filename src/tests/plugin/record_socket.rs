//! Receives plugin records, as an agent without a run directory does. Its socket is in the CNI net
//! dir.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::call::{Call, Outcome};

fn socket_path(call: &Call) -> PathBuf {
    call.kubeconfig().with_file_name(".linkerd-cni.sock")
}

/// Runs the call while the socket exists. Returns the outcome and the record.
pub fn run_and_record(call: &Call) -> (Outcome, Value) {
    let socket = bind(call);
    let outcome = call.run();
    fs::remove_file(socket_path(call)).unwrap();
    (outcome, receive_record(&socket))
}

/// Binds the agent's socket.
pub fn bind(call: &Call) -> UnixDatagram {
    bind_at(&socket_path(call))
}

pub fn bind_at(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Returns the next record, which must be smaller than 8 KiB.
pub fn receive_record(socket: &UnixDatagram) -> Value {
    let mut buffer = vec![0; 20 << 10];
    let length = socket.recv(&mut buffer).unwrap();
    assert!(length < 8 << 10, "{length}");
    serde_json::from_slice(&buffer[..length]).unwrap()
}
