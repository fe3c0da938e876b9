//! Starts, stops and kills of the agent, and what each leaves on the node.

use std::fs;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::node::{CONF, LIST, Node};
use crate::until::until;

#[test]
fn a_new_agent_adopts_what_is_right_without_writing_it() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    node.install();
    let names =
        [LIST, "20-net.conflist", "kubeconfig.json", ".linkerd-cni-state", "../bin/linkerd-cni"];
    let inodes = names.map(|name| node.inode(name));
    let mut agent = node.start_ready();
    assert_eq!(names.map(|name| node.inode(name)), inodes);
    // Nobody disturbs the uninstall, so it does not wait for other programs.
    let begin = Instant::now();
    node.assert_restored(&mut agent, &before);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn uninstall_removes_everything_a_dead_agent_left() {
    for how in [
        ("LINKERD_CNI_CHAINED", "true"),
        ("LINKERD_CNI_CHAINED", "false"),
        ("LINKERD_CNI_CONF_NAME", "20-net.conf"),
    ] {
        let node = Node::with_calico();
        node.write("20-net.conf", CONF);
        let before = node.tree();
        let mut agent = node.start_ready_with(&[how]);
        agent.kill();
        assert_ne!(node.tree(), before);
        // The command gets only the directories, and no template of the plugin entry.
        for _ in 0..2 {
            let mut uninstall = node.start_args(&["uninstall"], &[("CNI_NETWORK_CONFIG", "")]);
            assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
            assert_eq!(node.tree(), before, "{how:?}");
        }
    }
}

#[test]
fn leftover_files_are_removed_and_directories_with_their_names_kept() {
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
            match are_directories {
                true => fs::create_dir(node.net(name)).unwrap(),
                false => node.write(name, r#"{"type":"linkerd-cni","name":"x"}"#),
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
fn a_file_that_an_upstream_agent_still_writes_is_not_removed() {
    let node = Node::with_calico();
    let path = node.net("10-calico.conflist.install");
    let mut file = fs::File::create(&path).unwrap();
    let agent = node.start();
    until("an agent that is ready while the file grows", || {
        file.write_all(b"x").unwrap();
        agent.ready().0 == 200
    });
    let written = fs::metadata(&path).unwrap();
    assert_eq!(written.len(), file.metadata().unwrap().len(), "{}", agent.log());
    until("the removal", || !path.exists());
    assert_eq!(agent.ready().0, 200, "{}", agent.log());
}

#[test]
fn an_old_config_written_after_the_start_makes_the_node_not_ready() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    node.write("01-linkerd-cni.conf", r#"{"type":"linkerd-cni","name":"x"}"#);
    until("a node that is not ready", || agent.ready().0 != 200);
}

#[test]
fn a_stop_signal_during_the_start_leaves_the_node_unchanged() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    for delay in 0..8 {
        let mut agent = node.start();
        until("signals are taken over", || testkit::child::takes_sigterm(agent.pid()));
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
    let (mut one, mut other) = (node.start(), node.start());
    one.until_ready();
    other.until_ready();
    for _ in 0..10 {
        node.rewrite_calico();
    }
    assert_eq!(node.types(LIST).len(), 3);
    one.kill();
    assert_eq!(other.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn the_helm_test_probe_reports_that_no_connection_reached_it() {
    let node = Node::with_calico();
    let probe = node.start_under(&[], &["probe", "serve", "--token", "token", "0"], &[]);
    until("the error", || probe.log().contains("no connection was redirected to [0] within 20 s"));
}
