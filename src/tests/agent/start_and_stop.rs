//! Tests the files on the node after the agent starts, stops or is killed.

use std::fs;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::node::{CONF, LIST, Node};
use crate::until::until;

#[test]
fn new_agent_does_not_rewrite_files_that_are_right() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    node.install();
    let names =
        [LIST, "20-net.conflist", "kubeconfig.json", ".linkerd-cni-state", "../bin/linkerd-cni"];
    let inodes = names.map(|name| node.inode(name));
    let mut agent = node.start_ready();
    assert_eq!(names.map(|name| node.inode(name)), inodes);
    // No other program writes the files, so the uninstall does not wait for one.
    let begin = Instant::now();
    node.assert_restored(&mut agent, &before);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn uninstall_removes_everything_a_dead_agent_left() {
    for mode in [
        ("LINKERD_CNI_CHAINED", "true"),
        ("LINKERD_CNI_CHAINED", "false"),
        ("LINKERD_CNI_CONF_NAME", "20-net.conf"),
    ] {
        let node = Node::with_calico();
        node.write("20-net.conf", CONF);
        let before = node.tree();
        let mut agent = node.start_ready_with(&[mode]);
        agent.kill();
        assert_ne!(node.tree(), before);
        // The subcommand needs only the directories, not the template of the plugin entry.
        for _ in 0..2 {
            let mut uninstall = node.start_args(&["uninstall"], &[("CNI_NETWORK_CONFIG", "")]);
            assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
            assert_eq!(node.tree(), before, "{mode:?}");
        }
    }
}

#[test]
fn uninstall_fails_if_a_cni_directory_does_not_exist() {
    let node = Node::with_calico();
    let variables = [("DEST_CNI_NET_DIR", "/missing/net"), ("DEST_CNI_BIN_DIR", "/missing/bin")];
    for (variable, value) in variables {
        let mut uninstall = node.start_args(&["uninstall"], &[(variable, value)]);
        assert_eq!(uninstall.wait(), Some(1), "{}", uninstall.log());
        let error = format!("the node has no directory {value}; set {variable} to");
        assert!(uninstall.log().contains(&error), "{}", uninstall.log());
    }
    node.uninstall();
}

#[test]
fn leftover_files_are_removed_but_directories_with_their_names_are_kept() {
    for are_directories in [false, true] {
        let node = Node::uninstalling_with_calico();
        let mut before = node.tree();
        for name in [
            "01-linkerd-cni.conf",
            "10-calico.conflist.install",
            "kubeconfig.json.install",
            ".linkerd-cni.1.2.3.tmp",
            "../bin/linkerd-cni.install",
        ] {
            if are_directories {
                fs::create_dir(node.net(name)).unwrap();
            } else {
                node.write(name, r#"{"type":"linkerd-cni","name":"x"}"#);
            }
        }
        if are_directories {
            before = node.tree();
        }
        let mut agent = node.start_ready();
        assert!(node.chained(LIST));
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn leftover_file_is_not_removed_while_an_upstream_agent_writes_it() {
    let node = Node::with_calico();
    let path = node.net("10-calico.conflist.install");
    let mut file = fs::File::create(&path).unwrap();
    let agent = node.start();
    until("the agent is ready while the file grows", || {
        file.write_all(b"x").unwrap();
        agent.ready().0 == 200
    });
    let written = fs::metadata(&path).unwrap();
    assert_eq!(written.len(), file.metadata().unwrap().len(), "{}", agent.log());
    until("the file is removed", || !path.exists());
    assert_eq!(agent.ready().0, 200, "{}", agent.log());
}

#[test]
fn node_is_not_ready_if_an_old_config_is_written_after_the_start() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    node.write("01-linkerd-cni.conf", r#"{"type":"linkerd-cni","name":"x"}"#);
    until("the node is not ready", || agent.ready().0 != 200);
}

#[test]
fn stop_signal_during_the_start_leaves_the_node_unchanged() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    for delay in 0..8 {
        let mut agent = node.start();
        until("the agent handles signals", || testkit::child::takes_sigterm(agent.pid()));
        thread::sleep(Duration::from_millis(delay));
        let signal = [Signal::SIGTERM, Signal::SIGINT][delay as usize % 2];
        agent.signal(signal);
        assert_eq!(agent.wait(), Some(0), "{}", agent.log());
        assert_eq!(node.tree(), before);
    }
}

#[test]
fn two_agents_with_equal_settings_chain_the_plugin_once() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    let (mut first, mut second) = (node.start(), node.start());
    first.until_ready();
    second.until_ready();
    for _ in 0..10 {
        node.rewrite_calico();
    }
    assert_eq!(node.types(LIST).len(), 3);
    first.kill();
    assert_eq!(second.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn probe_of_helm_test_reports_that_no_connection_was_redirected_to_it() {
    let node = Node::with_calico();
    let probe = node.start_under(&[], &["probe", "serve", "--token", "token", "0"], &[]);
    until("the error", || probe.log().contains("no connection was redirected to [0] within 20 s"));
}
