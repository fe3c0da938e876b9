//! Tests the order in which an agent changes the node's files, as strace shows it. The model
//! (`docs/maintainers/model.md`) is compared with the same order.

use std::fs;

use nix::sys::signal::{Signal, kill};

use crate::child::has_strace;
use crate::node::Node;
use crate::until::until;

/// System calls that rename or remove files, or lock them.
const CALLS: &str = "trace=rename,renameat,renameat2,unlink,unlinkat,link,linkat,flock";

/// Returns the last segment of a path, or `temporary` for any temporary file.
fn name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap();
    if name.ends_with(".tmp") { "temporary" } else { name }
}

/// Describes a line of strace in the words of the model. Returns `None` for a failed call, and for
/// the removal of a temporary file.
fn operation(line: &str) -> Option<String> {
    if !line.trim_end().ends_with("= 0") {
        return None;
    }
    let names: Vec<&str> = line.split('"').skip(1).step_by(2).map(name).collect();
    Some(match names[..] {
        [] if line.contains("LOCK_EX") => "lock".into(),
        [] if line.contains("LOCK_UN") => "unlock".into(),
        ["temporary"] => return None,
        [name] => format!("remove {name}"),
        ["temporary", name] if line.contains("RENAME_NOREPLACE") => format!("create {name}"),
        ["temporary", name] if line.contains("RENAME_EXCHANGE") => format!("exchange {name}"),
        ["temporary", name] => format!("write {name}"),
        [name, "temporary"] => format!("take {name}"),
        _ => line.to_owned(),
    })
}

/// Runs an agent that installs and uninstalls under strace. Returns the trace of its main thread,
/// with the paths of file descriptors. Each thread is traced to a separate file, so that strace
/// does not split the line of a call.
pub fn trace(node: &Node, calls: &str) -> String {
    let traces = node.root().join("traces");
    fs::create_dir(&traces).unwrap();
    let trace = traces.join("of");
    let by = ["strace", "-ff", "-y", "-s", "0", "-qq", "-o", trace.to_str().unwrap(), "-e", calls];
    let by = [&by[..], &["-e", "signal=none"]].concat();
    let mut agent = node.start_under(&by, &[], &[]);
    agent.until_ready();
    let main = agent.child().unwrap();
    kill(main, Signal::SIGTERM).unwrap();
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    let trace = traces.join(format!("of.{main}"));
    until("the trace", || fs::metadata(&trace).is_ok_and(|file| file.len() > 0));
    fs::read_to_string(trace).unwrap()
}

/// Returns the operations of an agent that installs and uninstalls on a node with the network
/// config `primary`.
fn operations(primary: &str, text: &str) -> String {
    let node = Node::uninstalling();
    node.write(primary, text);
    let mut operations: Vec<String> = Vec::new();
    for operation in trace(&node, CALLS).lines().filter_map(operation) {
        let is_locked = operations.last().is_some_and(|last| last == "lock");
        if is_locked && operation == "unlock" {
            // Omit a reconcile pass that wrote nothing.
            operations.pop();
        } else {
            operations.push(operation);
        }
    }
    operations.join("\n") + "\n"
}

#[test]
fn agent_changes_the_nodes_files_in_the_order_of_the_model() {
    if !has_strace() {
        return;
    }
    let plugin = r#"{"type":"bridge","name":"net"}"#;
    let list = format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#);
    assert_eq!(
        operations("10-net.conflist", &list),
        include_str!("../model/sequence/10-net.conflist.txt")
    );
    assert_eq!(
        operations("10-net.conf", plugin),
        include_str!("../model/sequence/10-net.conf.txt")
    );
}
