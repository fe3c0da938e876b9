//! An agent whose stdout and stderr take nothing, as under a runtime's shim that hangs.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use crate::agent::{Agent, get};
use crate::node::{Node, PROGRAM};
use crate::until::until;
use crate::unwritable::{Unwritable, closed, full_device, full_pipe};

#[test]
fn agent_installs_reconciles_and_uninstalls_with_closed_or_full_outputs() {
    for output in [full_device(), closed(), full_pipe()] {
        for level in ["info", "trace"] {
            let node = Node::with_calico();
            let before = node.tree();
            let address = free_address();
            let mut agent = start(&node, &output, address, level);
            let case = format!("{} at level {level}", output.name);
            let ready = || get(address, "/ready").is_some_and(|(status, _)| status == 200);
            until(&format!("ready with {case}"), ready);

            node.rewrite_calico();
            until(&format!("ready again with {case}"), ready);
            let (_, metrics) = get(address, "/metrics").unwrap();
            let dropped = metrics
                .lines()
                .find_map(|line| line.strip_prefix("linkerd_cni_agent_log_lines_dropped_total "))
                .unwrap();
            assert_eq!(dropped == "0", output.name == "closed", "{case}: {dropped}");

            node.assert_restored(&mut agent, &before);
        }
    }
}

fn start(node: &Node, output: &Unwritable, address: SocketAddr, level: &str) -> Agent {
    let mut command = output.as_stderr_of(PROGRAM);
    node.set(&mut command);
    let child = command
        .env("LINKERD_CNI_ADMIN_ADDR", address.to_string())
        .env("LINKERD_CNI_LOG_LEVEL", level)
        .stdout(output.stdio())
        .spawn()
        .unwrap();
    let no_log = node.root().join("no-log");
    fs::write(&no_log, "").unwrap();
    Agent::new(child, no_log)
}

/// One that nobody listens on. The agent cannot log which one it chose.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
