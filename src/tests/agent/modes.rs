//! The chain modes: one named file, a standalone config, a copy of the active conflist.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::node::{CALICO, CONF, LIST, Node};
use crate::repeated::Repeated;
use crate::until::until;

type Vars = &'static [(&'static str, &'static str)];

const ONLY: Vars = &[("LINKERD_CNI_CONF_NAME", "20-net.conf")];
const ALONE: Vars = &[("LINKERD_CNI_CHAINED", "false")];
const COPY: Vars = &[("LINKERD_CNI_OWN_CONFIG", "true")];
const COPIED: &str = "00-linkerd-cni.conflist";
const STANDALONE: &str = "linkerd-cni.conf";

#[test]
fn agent_waits_for_the_named_config_chains_it_alone_and_restores_it() {
    let node = Node::with_calico();
    let mut agent = node.start_with(ONLY);
    until("the reason", || {
        let (status, why) = agent.ready();
        status == 500
            && why.contains("20-net.conf, which cniConfFileName names, does not exist yet")
    });
    assert!(!node.chained(LIST));
    let inode = node.inode(LIST);
    node.write("20-net.conf", CONF);
    agent.until_ready();
    assert_eq!(node.types("20-net.conflist"), ["bridge", "linkerd-cni"]);
    assert!(!node.net("20-net.conf").exists());
    // A pass finds it, which may follow the readiness.
    until("the warning", || {
        agent
            .log()
            .contains("the active network config is 10-calico.conflist, but cniConfFileName names")
    });
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("20-net.conf"), CONF);
    assert_eq!(node.text(LIST), CALICO);
    assert_eq!(node.inode(LIST), inode);
    assert!(!node.net(".linkerd-cni-state").exists());
}

#[test]
fn agent_restores_and_uninstalls_a_standalone_config() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    let mut agent = node.start_ready_with(ALONE);
    let conf = node.json(STANDALONE);
    assert_eq!(
        (&conf["name"], &conf["type"], &conf["cniVersion"]),
        (&json!("linkerd-cni"), &json!("linkerd-cni"), &json!("0.3.1"))
    );
    assert_eq!(conf["kubernetes"]["kubeconfig"], "etc/kubeconfig.json");
    assert_eq!(node.text(LIST), CALICO);
    let whole = node.text(STANDALONE);
    for damaged in ["", "{\"type\":\"linkerd-cni\"}"] {
        node.write(STANDALONE, damaged);
        until("it is whole again", || node.text(STANDALONE) == whole);
    }
    fs::remove_file(node.net(STANDALONE)).unwrap();
    until("it is there again", || node.text(STANDALONE) == whole);
    agent.until_ready();
    // The next agent adopts the file and does not write it.
    agent.kill();
    let inode = node.inode(STANDALONE);
    let mut agent = node.start_ready_with(ALONE);
    assert_eq!(node.inode(STANDALONE), inode);
    node.assert_restored(&mut agent, &before);
}

#[test]
fn a_standalone_file_with_the_name_of_an_old_leftover_is_adopted_like_any_other() {
    let node = Node::uninstalling_with_calico();
    let name = "01-linkerd-cni.conf";
    let vars = [ALONE[0], ("LINKERD_CNI_CONF_NAME", name)];
    let mut agent = node.start_ready_with(&vars);
    let inode = node.inode(name);
    agent.kill();
    let mut agent = node.start_ready_with(&vars);
    assert_eq!(node.inode(name), inode, "{}", agent.log());
    assert_eq!(agent.stop(), Some(0));
    assert!(!node.net(name).exists());
}

#[test]
fn config_of_another_program_is_never_overwritten() {
    let node = Node::with_calico();
    let before = node.tree();
    let name = ("LINKERD_CNI_CONF_NAME", LIST);
    for how in [ALONE[0], COPY[0]] {
        let mut agent = node.start_with(&[name, how]);
        until("the reason", || {
            agent.ready().1.contains("10-calico.conflist belongs to another program")
        });
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn copy_follows_the_conflist_of_the_primary_cni_which_is_never_written() {
    let node = Node::with_calico();
    fs::set_permissions(node.net(LIST), PermissionsExt::from_mode(0o640)).unwrap();
    let before = node.tree();
    let inode = node.inode(LIST);
    let mut agent = node.start_ready_with(COPY);
    assert_eq!(node.inode(LIST), inode);
    assert_eq!(node.types(COPIED), ["calico", "portmap", "linkerd-cni"], "{}", agent.log());
    let mode = fs::metadata(node.net(COPIED)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    for turn in 0..10 {
        let text = CALICO.replace("1e3", &format!("{turn}e3"));
        match turn % 2 {
            0 => node.replace(&node.net(LIST), text.as_bytes()),
            _ => node.write(LIST, &text),
        }
        let followed = || node.text(COPIED).contains(&format!("{turn}e3"));
        until("the copy follows", followed);
        assert_eq!(node.text(LIST), text);
    }
    // Half written, the network's file is no reason to give up what works.
    node.write(LIST, &CALICO[..CALICO.len() / 2]);
    until("the reason", || agent.ready().1.contains("remains a copy of its last valid content"));
    assert!(node.chained(COPIED));
    node.write(LIST, CALICO);
    agent.until_ready();
    until("the copy follows", || node.text(COPIED).contains("1e3"));
    // A network that is gone is handed to nobody.
    fs::rename(node.net(LIST), node.root().join("away")).unwrap();
    until("the copy goes too", || !node.net(COPIED).exists());
    until("the reason", || agent.ready().1.contains("no network config exists yet"));
    fs::rename(node.root().join("away"), node.net(LIST)).unwrap();
    agent.until_ready();
    assert!(node.chained(COPIED));
    node.assert_restored(&mut agent, &before);
}

#[test]
fn change_from_any_mode_to_any_other_leaves_no_file_behind() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    type IsIt = fn(&Node) -> bool;
    let modes: [(Vars, IsIt); 4] = [
        (&[], |node| node.chained(LIST) && node.chained("20-net.conflist")),
        (COPY, |node| {
            node.chained(COPIED) && node.text(LIST) == CALICO && node.text("20-net.conf") == CONF
        }),
        (ONLY, |node| node.chained("20-net.conflist") && node.text(LIST) == CALICO),
        (ALONE, |node| {
            node.net(STANDALONE).exists()
                && node.text(LIST) == CALICO
                && node.text("20-net.conf") == CONF
        }),
    ];
    for (from, is_from) in modes {
        for (to, is_to) in modes {
            for killed in [true, false] {
                let mut agent = node.start_ready_with(from);
                until("the first mode", || is_from(&node));
                agent.kill();
                let mut agent = node.start_with(to);
                if killed {
                    // In the middle of the change, wherever that is.
                    thread::sleep(Duration::from_millis(5));
                    agent.kill();
                    node.assert_not_stranded();
                    agent = node.start_with(to);
                }
                agent.until_ready();
                until("the second mode", || is_to(&node));
                agent.until_ready();
                node.assert_not_stranded();
                node.assert_restored(&mut agent, &before);
            }
        }
    }
}

#[test]
fn changing_between_chaining_and_a_copy_keeps_the_plugin_chained() {
    let node = Arc::new(Node::with_calico());
    let mut agent = node.start_ready();
    agent.kill();
    let read = Arc::clone(&node);
    let reader = Repeated::start(Duration::ZERO, 0, move |reads| {
        // The first that is there when it is opened, as a runtime has it. A file that
        // came since the first read is found by the second.
        let chained = || read.chained(COPIED) || read.chained(LIST);
        assert!(chained() || chained(), "read {reads}");
        *reads += 1;
    });
    for round in 0..12 {
        let mut agent = node.start_ready_with([COPY, &[]][round % 2]);
        let left = [COPIED, LIST][(round + 1) % 2];
        until("the other one is given back", || !node.chained(left));
        agent.kill();
    }
    assert!(reader.finish() > 12);
}

#[test]
fn kills_at_any_time_leave_no_node_stranded_in_any_mode() {
    for (vars, kills) in [(COPY, 40), (ALONE, 20), (ONLY, 20)] {
        let node = Node::uninstalling_with_calico();
        node.write("20-net.conf", CONF);
        let before = node.tree();
        for round in 0..kills {
            let mut agent = node.start_with(vars);
            thread::sleep(Duration::from_micros(700 * (round % 20)));
            if round >= kills / 2 {
                agent.signal(Signal::SIGTERM);
                agent.until_uninstalling();
                thread::sleep(Duration::from_micros(300 * (round % 20)));
            }
            agent.kill();
            node.assert_not_stranded();
        }
        let mut agent = node.start_ready_with(vars);
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn an_older_agent_of_another_mode_leaves_the_network_configs_to_the_newer_agent() {
    let node = Node::uninstalling_with_calico();
    let old = node.start_ready_with(&[("LINKERD_CNI_OWN_CONFIG", "true")]);
    let template = crate::node::TEMPLATE.replace("4143", "5143");
    let new = node.start_ready_with(&[("CNI_NETWORK_CONFIG", &template)]);
    until("the newer agent's entry", || node.text(LIST).contains("5143"));
    until("no copy", || !node.net("00-linkerd-cni.conflist").exists());
    // Both agents have looked at the last write by now.
    let inode = node.inode(LIST);
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_millis(500) {
        assert!(!node.net("00-linkerd-cni.conflist").exists(), "{}", old.log());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(node.inode(LIST), inode, "{}", new.log());
}
