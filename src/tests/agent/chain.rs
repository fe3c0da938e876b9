//! Tests how the agent treats the files in the net dir.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::node::{CALICO, CONF, LIST, Node};
use crate::until::until;

#[test]
fn invalid_file_is_skipped_until_it_is_valid() {
    let node = Node::uninstalling();
    node.write("40-not.conf", "not json");
    node.write("41-empty.conflist", "");
    fs::create_dir(node.net("42-dir.conf")).unwrap();
    symlink("nowhere", node.net("43-link.conflist")).unwrap();
    node.write("45-none.conflist", r#"{"name":"x","plugins":[]}"#);
    node.write("46-null.conflist", "null");
    node.write("47-half.conflist", &CALICO[..CALICO.len() / 2]);
    nix::unistd::mkfifo(&node.net("48-pipe.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.write("49-bom.conflist", &format!("\u{feff}{CALICO}"));
    node.write(LIST, CALICO);
    node.write("20-other.json", r#"{"type":"x","name":"n"}"#);
    node.write("30-calico.conflist.cilium_bak", CALICO);
    let before = node.tree();
    let mut agent = node.start_ready();
    assert!(node.chained(LIST));
    // Only the valid config has changed. Ignore the new files: binary, kubeconfig, saved state and
    // socket.
    let mut now = node.tree();
    now.retain(|name, _| before.contains_key(name));
    now.insert("etc/10-calico.conflist".into(), before["etc/10-calico.conflist"].clone());
    assert!(now == before, "{:?} of {:?}", now.keys(), before.keys());
    let log = agent.log();
    for (name, why) in [
        ("40-not.conf", "is not JSON (line 1, column 2)"),
        ("41-empty.conflist", "is empty"),
        ("42-dir.conf", "is not a regular file"),
        ("43-link.conflist", "is a symbolic link to a missing file"),
        ("45-none.conflist", "has an empty array \"plugins\""),
        ("46-null.conflist", "is not a JSON object"),
        ("47-half.conflist", "is not JSON (line 7, column 11)"),
        ("48-pipe.conf", "is not a regular file"),
        ("49-bom.conflist", "is not JSON (line 1, column 1)"),
    ] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(name)).collect();
        assert!(lines.len() == 1 && lines[0].ends_with(why), "{name}: {lines:?}");
    }
    // Another program writes the file in two parts, as a slow `cp` does.
    node.write("47-half.conflist", &CALICO[..CALICO.len() - 3]);
    thread::sleep(Duration::from_millis(60));
    node.write("47-half.conflist", CALICO);
    until("the completed file", || node.chained("47-half.conflist"));
    node.write("47-half.conflist", &CALICO[..CALICO.len() / 2]);
    node.write("41-empty.conflist", CALICO);
    until("the filled file", || node.chained("41-empty.conflist"));
    node.write("41-empty.conflist", "");
    agent.until_ready();
    agent.stop();
    assert_eq!(node.tree(), before);
}

/// If the first file is invalid, containerd reports an error and loads no network config.
#[test]
fn agent_is_not_ready_while_an_invalid_file_sorts_before_the_active_config() {
    type Write = fn(&Node, &str);
    let kinds: [(&str, &str, Write); 5] = [
        ("half a conf", "05-cilium.conf is not JSON", |node, name| node.write(name, "{")),
        ("a list in a conf", "05-cilium.conf has a list", |node, name| node.write(name, CALICO)),
        ("invalid UTF-8", "05-cilium.conf is not UTF-8", |node, name| {
            fs::write(node.net(name), b"\xff{}").unwrap();
        }),
        ("an empty conflist", "05-cilium.conflist is empty", |node, name| node.write(name, "")),
        ("a link to a missing file", "05-cilium.conf is a symbolic link", |node, name| {
            symlink("nowhere", node.net(name)).unwrap();
        }),
    ];
    for vars in [vec![], vec![("LINKERD_CNI_CONF_NAME", LIST)]] {
        let node = Node::with_calico();
        let mut agent = node.start_ready_with(&vars);
        for (kind, why, write) in kinds {
            let name = why.split_once(' ').unwrap().0;
            write(&node, name);
            until(kind, || {
                let (status, body) = agent.ready();
                let is_named = body.contains(why) && body.contains("correct or remove");
                status == 500 && is_named
            });
            assert!(node.chained(LIST), "{kind}");
            fs::remove_file(node.net(name)).unwrap();
            agent.until_ready();
        }
    }
}

/// Sets a file mode that is not the default, to check that the agent restores it.
fn set_mode(node: &Node) {
    fs::set_permissions(node.net("10-net.conf"), PermissionsExt::from_mode(0o640)).unwrap();
}

#[test]
fn converted_conf_is_restored_with_its_bytes_and_mode() {
    for (others, conflist) in
        [(&[][..], "10-net.conflist"), (&["10-net.conflist"], "10-net.conf.conflist")]
    {
        let node = Node::uninstalling();
        node.write("10-net.conf", CONF);
        set_mode(&node);
        for name in others {
            node.write(name, CALICO);
        }
        let before = node.tree();
        let mut agent = node.start_ready();
        // The runtime loads the first file in name order.
        assert!(!node.net("10-net.conf").exists());
        let list = node.json(conflist);
        assert_eq!((&list["name"], &list["cniVersion"]), (&json!("net"), &json!("0.4.0")));
        assert_eq!(node.types(conflist), ["bridge", "linkerd-cni"]);
        assert!(others.iter().all(|name| node.chained(name)));

        // The owners rewrite their files, as flannel's init container does at each start.
        for number in ["2e3", "1e3"] {
            node.write("10-net.conf", &CONF.replace("1e3", number));
            for name in others {
                node.write(name, CALICO);
            }
            until("the new conf in its conflist", || {
                !node.net("10-net.conf").exists()
                    && node.text(conflist).contains(number)
                    && others.iter().all(|name| node.chained(name))
            });
        }
        agent.until_ready();
        // The next agent uses the saved state of the killed one.
        agent.kill();
        let state = fs::metadata(node.net(".linkerd-cni-state")).unwrap();
        assert_eq!(state.permissions().mode() & 0o7777, 0o600);
        let mut agent = node.start_ready();
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        set_mode(&node);
        assert_eq!(node.tree(), before);
    }
}

#[test]
fn extended_attributes_of_a_conf_are_copied_to_the_conflist_and_restored() {
    let node = Node::uninstalling();
    node.write("10-net.conf", CONF);
    // Some file systems support only `trusted` attributes, which need root.
    let attribute = ["user.owner", "trusted.owner"].into_iter().find(|attribute| {
        let path = node.net("10-net.conf");
        rustix::fs::setxattr(path, *attribute, b"cni", rustix::fs::XattrFlags::empty()).is_ok()
    });
    let Some(attribute) = attribute else {
        assert!(std::env::var_os("CI").is_none(), "no extended attributes");
        return println!("skipped: this file system has no such attributes");
    };
    let has = |name: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(node.net(name), attribute, &mut value[..]) == Ok(3)
    };
    let mut agent = node.start_ready();
    assert!(has("10-net.conflist"));
    assert_eq!(agent.stop(), Some(0));
    assert!(has("10-net.conf"));
}

#[test]
fn json_file_and_symbolic_link_are_replaced_by_conflists_and_restored() {
    for is_link in [false, true] {
        let node = Node::uninstalling();
        let (real, link) = (node.root().join("real"), node.net("20-net.conflist"));
        fs::write(&real, CALICO).unwrap();
        if is_link {
            symlink("../real", link).unwrap();
        } else {
            node.write("20-net.json", CONF);
        }
        let before = node.tree();
        let mut agent = node.start_ready();
        assert!(node.chained("20-net.conflist") && !node.net("20-net.json").exists());
        assert_eq!(fs::read_to_string(&real).unwrap(), CALICO);
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn uninstall_keeps_changes_of_other_programs_and_removes_only_the_plugin_entry() {
    let node = Node::uninstalling();
    node.write("10-net.conf", CONF);
    node.write("20-calico.conflist", CALICO);
    let mut agent = node.start_ready();
    for name in ["10-net.conflist", "20-calico.conflist"] {
        let mut list = node.json(name);
        list["mine"] = json!(true);
        node.replace(&node.net(name), list.to_string().as_bytes());
    }
    agent.stop();
    for name in ["10-net.conflist", "20-calico.conflist"] {
        assert_eq!(node.json(name)["mine"], true);
        assert!(!node.text(name).contains("linkerd-cni"), "{name}");
    }
    assert!(!node.net("kubeconfig.json").exists() && !node.net(".linkerd-cni-state").exists());
}
