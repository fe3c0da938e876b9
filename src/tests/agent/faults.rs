//! Tests that kill the agent at chosen system calls. The tests in `modes` kill it at random times.

use nix::sys::signal::{Signal, kill};

use crate::child::has_strace;
use crate::node::{CALICO, CONF, Node};

/// System calls that change the host. The number is the least number of these calls in an install
/// and an uninstall with two network configs. strace kills the agent when it enters the call, so
/// all earlier calls have completed.
const CALLS: [(&str, usize); 9] = [
    ("write", 4),
    ("copy_file_range", 1),
    // Replacing a file takes two calls (see `durability`), removing one takes one call.
    ("fsync", 15),
    ("fchmod", 4),
    ("rename", 2),
    ("renameat2", 2),
    ("unlink", 2),
    // Only a network config that is a link or has a different owner causes these calls.
    ("symlink", 0),
    ("fchown", 0),
];

#[test]
fn kill_at_any_system_call_that_writes_never_strands_the_node() {
    if !has_strace() {
        return;
    }
    for (call, least) in CALLS {
        let mut kills = 0;
        for count in 1..200 {
            let node = Node::uninstalling_with_calico();
            node.write("20-net.conf", CONF);
            node.write("20-net.conflist", CALICO);
            let before = node.tree();
            let fault = format!("{call}:signal=KILL:when={count}");
            let mut agent = node.start_with_fault(&fault, &[("LINKERD_CNI_LOG_LEVEL", "info")]);
            if agent.ready_or_dead()
                && let Some(child) = agent.child()
            {
                let _ = kill(child, Signal::SIGTERM);
            }
            let status = agent.wait();
            node.assert_not_stranded();
            node.uninstall();
            assert_eq!(node.tree(), before, "kill at {call} number {count}");
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
fn kill_while_a_rewritten_conf_is_chained_does_not_lose_the_conf() {
    if !has_strace() {
        return;
    }
    for call in ["write", "fsync", "rename", "unlink"] {
        for count in 1..20 {
            let node = Node::uninstalling();
            node.write("20-net.conf", CONF);
            node.install();
            // flannel rewrites its config at each start.
            let rewritten = CONF.replace("1e3", "2e3");
            node.write("20-net.conf", &rewritten);
            let mut agent = node.start_with_fault(&format!("{call}:signal=KILL:when={count}"), &[]);
            let is_killed = !agent.ready_or_dead();
            if let Some(child) = agent.child() {
                let _ = kill(child, Signal::SIGKILL);
            }
            agent.wait();
            let mut agent = node.start_ready();
            assert!(node.text("20-net.conflist").contains("2e3"));
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
            assert_eq!(node.text("20-net.conf"), rewritten, "{call} {count}");
            assert!(!node.net("20-net.conflist").exists(), "{call} {count}");
            if !is_killed {
                break;
            }
        }
    }
}
