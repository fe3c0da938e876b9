//! Kills the agent at chosen system calls. Kills at random moments are in `modes`.

use nix::sys::signal::{Signal, kill};

use crate::child::has_strace;
use crate::node::{CALICO, CONF, Node};

/// System calls that change the host, and the least number of them in an install and an uninstall
/// of two network configs. strace kills the agent at the start of one, so all earlier calls are
/// done.
const CALLS: [(&str, usize); 9] = [
    ("write", 4),
    ("copy_file_range", 1),
    // There are two calls for each file that is replaced (`durability`), and one for each that is
    // removed.
    ("fsync", 15),
    ("fchmod", 4),
    ("rename", 2),
    ("renameat2", 2),
    ("unlink", 2),
    // These calls are made only for a network config that is a link or has another owner.
    ("symlink", 0),
    ("fchown", 0),
];

#[test]
fn a_kill_after_any_call_that_writes_never_strands_the_node() {
    if !has_strace() {
        return;
    }
    for (call, least) in CALLS {
        let mut kills = 0;
        for turn in 1..200 {
            let node = Node::uninstalling_with_calico();
            node.write("20-net.conf", CONF);
            node.write("20-net.conflist", CALICO);
            let before = node.tree();
            let fault = format!("{call}:signal=KILL:when={turn}");
            let mut agent = node.start_with_fault(&fault, &[("LINKERD_CNI_LOG_LEVEL", "info")]);
            if agent.ready_or_dead()
                && let Some(child) = agent.child()
            {
                let _ = kill(child, Signal::SIGTERM);
            }
            let status = agent.wait();
            node.assert_not_stranded();
            node.uninstall();
            assert_eq!(node.tree(), before, "kill {turn} at {call}");
            if status == Some(0) {
                break;
            }
            kills += 1;
        }
        println!("{kills} kills at {call}");
        assert!(kills >= least, "{kills} kills at {call}");
    }
}

#[test]
fn a_kill_while_a_rewritten_conf_is_chained_keeps_the_conf() {
    if !has_strace() {
        return;
    }
    for call in ["write", "fsync", "rename", "unlink"] {
        for turn in 1..20 {
            let node = Node::uninstalling();
            node.write("20-net.conf", CONF);
            node.install();
            // flannel rewrites its config at each start.
            let anew = CONF.replace("1e3", "2e3");
            node.write("20-net.conf", &anew);
            let mut agent = node.start_with_fault(&format!("{call}:signal=KILL:when={turn}"), &[]);
            let killed = !agent.ready_or_dead();
            if let Some(child) = agent.child() {
                let _ = kill(child, Signal::SIGKILL);
            }
            agent.wait();
            let mut agent = node.start_ready();
            assert!(node.text("20-net.conflist").contains("2e3"));
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
            assert_eq!(node.text("20-net.conf"), anew, "{call} {turn}");
            assert!(!node.net("20-net.conflist").exists(), "{call} {turn}");
            if !killed {
                break;
            }
        }
    }
}
