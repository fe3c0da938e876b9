//! The redirect rules cannot be installed, or are gone.

use std::fs::{self, File};

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use super::fault::Fault;
use crate::child::{WITHOUT_NETLINK, has_strace};

#[test]
fn the_node_has_no_iptables() {
    let fault = Fault::new("no-iptables");
    let outcome = fault.add().linkerd("iptables-mode", json!("nft")).run_without_iptables();
    fault.check_failure(&outcome);
}

#[test]
fn the_kernel_is_too_old_for_native() {
    let mut fault = Fault::new("kernel-too-old");
    let add = fault.add().linkerd("iptables-mode", json!("native"));
    let outcome = add.run_under(&["setarch", "--uname-2.6"]);
    let msg = outcome.error().1;
    let version = msg.rsplit_once("this kernel is ").unwrap().1;
    fault.show(version, "4.4.302");
    fault.check_failure(&outcome);
}

#[test]
fn the_kernel_refuses_nf_tables() {
    if !has_strace() {
        return;
    }
    let fault = Fault::new("nf-tables-refused");
    let add = fault.add().linkerd("iptables-mode", json!("native"));
    let outcome = add.run_under(&WITHOUT_NETLINK);
    fault.check_failure(&outcome);
}

#[test]
fn the_xtables_lock_is_held() {
    let mut fault = Fault::new("xtables-lock");
    let path = fault.scene.node.root().join("xtables.lock");
    let _held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    let add = fault.add().linkerd("iptables-mode", json!("legacy"));
    fault.show(path.to_str().unwrap(), "/run/xtables.lock");
    let own = fs::read_to_string("/proc/self/comm").unwrap();
    fault.show(
        &format!("process {} (\"{}\")", std::process::id(), own.trim()),
        "process N (\"NAME\")",
    );
    let add = add.env("XTABLES_LOCKFILE", path);
    let mut outcome = add.run();
    // On a busy machine iptables is killed before its own wait of 5 s for the lock ends.
    for _ in 0..3 {
        if !outcome.stdout.contains("was killed") {
            break;
        }
        outcome = add.run();
    }
    fault.check_failure(&outcome);
}

#[test]
fn rules_of_a_running_pod_are_gone() {
    let mut fault = Fault::new("rules-missing");
    let call = |fault: &Fault, command| {
        let annotations = json!({"linkerd.io/proxy-version": "edge-26.8.3"});
        fault.call(command).linkerd("iptables-mode", json!("native")).annotated(annotations)
    };
    call(&fault, "ADD").run().succeeded();
    fault.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
    let outcome = call(&fault, "CHECK").run();
    fault.pod_fails(&outcome);
    fault.check();
}
