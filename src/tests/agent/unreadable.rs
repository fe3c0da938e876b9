//! Tests network configs that the agent cannot read, but that a container runtime may load.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::agent_with_api::in_parallel;
use crate::node::{CALICO, CONF, LIST, Node};
use crate::until::until;

/// Pads a config beyond the size that the agent reads. Container runtimes have no such limit.
fn huge(text: &str) -> String {
    format!("{text}{}", " ".repeat(6 << 20))
}

#[test]
fn node_is_not_ready_if_only_the_runtime_can_read_the_first_config() {
    let link = "is a symbolic link out of the mounted directory";
    // Name of the config, function that creates it, reason, and exit status of an uninstall.
    let make: [(&str, MakeConfig, &str, i32); 5] = [
        (
            "05-absolute.conflist",
            |path| symlink("/nix/store/cni.conflist", path).unwrap(),
            &format!("{link}, to /nix/store/cni.conflist"),
            1,
        ),
        (
            "05-relative.conf",
            |path| symlink("../not-mounted/net.conf", path).unwrap(),
            &format!("{link}, to ../not-mounted/net.conf"),
            1,
        ),
        (
            "05-latin-1.conflist",
            |path| {
                let [before, after] = [&CALICO[..1], &CALICO[1..]].map(str::as_bytes);
                fs::write(path, [before, b"\"x\":\"\xe9\",", after].concat()).unwrap();
            },
            "is not UTF-8",
            0,
        ),
        (
            "05-huge.conflist",
            |path| fs::write(path, huge(CALICO)).unwrap(),
            "is larger than 5 MiB",
            1,
        ),
        (
            "05-fragments.conflist",
            |path| {
                fs::write(path, r#"{"name":"net","cniVersion":"1.0.0"}"#).unwrap();
                let dir = path.with_file_name("net");
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("10-bridge.conf"), CONF).unwrap();
            },
            "takes its plugins from the files in the directory net",
            0,
        ),
    ];
    in_parallel(make, |(name, make, reason, status)| {
        let node = Node::uninstalling_with_calico();
        make(&node.net(name));
        let before = node.tree();
        let mut agent = node.start();
        until("the second config is chained", || node.chained(LIST));
        until(reason, || {
            let (status, why) = agent.ready();
            status == 500 && [name, reason, "or remove it"].iter().all(|part| why.contains(part))
        });
        // The agent has never reported that it is ready.
        assert!(!agent.log().contains("is installed and verified"), "{}", agent.log());
        fs::rename(node.net(name), node.net(&format!("99-{name}"))).unwrap();
        agent.until_ready();
        fs::rename(node.net(&format!("99-{name}")), node.net(name)).unwrap();
        until("not ready again", || agent.ready().0 == 500);
        let begin = Instant::now();
        assert_eq!(agent.stop(), Some(status), "{name}: {}", agent.log());
        if status == 0 {
            // The config cannot name the plugin, so the uninstall does not wait for the config.
            assert!(begin.elapsed() < Duration::from_secs(4), "{name}: {}", agent.log());
            let line = format!("{reason}, and cannot name linkerd-cni");
            assert_eq!(agent.log().matches(&line).count(), 1, "{name}: {}", agent.log());
            assert_eq!(node.tree(), before, "{name}");
            return;
        }
        // The config may name the plugin, so the uninstall has kept the binary.
        let config = node.root().join("config");
        fs::rename(node.net(name), &config).unwrap();
        node.uninstall();
        fs::rename(&config, node.net(name)).unwrap();
        assert_eq!(node.tree(), before, "{name}");
    });
}

fn replace_by_link(node: &Node, target: &str) {
    fs::remove_file(node.net(LIST)).unwrap();
    symlink(target, node.net(LIST)).unwrap();
}

#[test]
fn uninstall_keeps_the_plugin_if_it_cannot_read_a_chained_conflist() {
    let hide: [(&str, Hide); 5] = [
        ("a huge file", |node, text| node.write(LIST, &huge(text))),
        ("bytes that are not UTF-8", |node, text| {
            let [before, after] = [&text[..1], &text[1..]].map(str::as_bytes);
            fs::write(node.net(LIST), [before, b"\"x\":\"\xe9\",", after].concat()).unwrap();
        }),
        ("an absolute link to a path that is missing here", |node, _| {
            replace_by_link(node, "/no/such/10-calico.conflist");
        }),
        ("an absolute link to another file here", |node, _| replace_by_link(node, "/etc/passwd")),
        ("a directory of plugins", |node, _| {
            node.write(LIST, r#"{"name":"net","cniVersion":"1.0.0"}"#);
            fs::create_dir(node.net("net")).unwrap();
            node.write("net/10-bridge.conf", CONF);
            node.write("net/20-linkerd.conf", r#"{"type":"linkerd-cni"}"#);
        }),
    ];
    in_parallel(hide, |(what, hide)| {
        let node = Node::uninstalling_with_calico();
        let before = node.tree();
        let mut agent = node.start_ready();
        let text = node.text(LIST);
        hide(&node, &text);
        assert_eq!(agent.stop(), Some(1), "{what}: {}", agent.log());
        let log = agent.log();
        for text in ["a network config still names linkerd-cni", "10-calico.conflist names"] {
            assert!(log.contains(text), "{what}: {log}");
        }
        assert!(node.bin("linkerd-cni").exists() && node.net("kubeconfig.json").exists(), "{what}");
        let _ = fs::remove_dir_all(node.net("net"));
        fs::remove_file(node.net(LIST)).unwrap();
        node.write(LIST, &text);
        node.uninstall();
        assert_eq!(node.tree(), before, "{what}");
    });
}

type MakeConfig = fn(&Path);
/// Makes the conflist with this text unreadable for the agent, but not for a runtime.
type Hide = fn(&Node, &str);

/// Invalid files that another program may leave in place of a network config. None of them names
/// the plugin.
const INVALID: [(&str, MakeConfig); 9] = [
    ("empty", |path| fs::write(path, "").unwrap()),
    ("an empty object", |path| fs::write(path, "{}").unwrap()),
    ("half JSON", |path| fs::write(path, r#"{"name":"\u006e","plugins":[{"ty"#).unwrap()),
    ("not UTF-8", |path| fs::write(path, b"\xff\xfe").unwrap()),
    ("a directory", |path| fs::create_dir(path).unwrap()),
    ("a socket", |path| drop(UnixDatagram::bind(path).unwrap())),
    ("a link to itself", |path| symlink(path.file_name().unwrap(), path).unwrap()),
    ("a link through a file", |path| symlink("10-calico.conflist/x", path).unwrap()),
    ("a FIFO", |path| mkfifo(path, Mode::S_IRWXU).unwrap()),
];

#[test]
fn invalid_config_that_does_not_name_the_plugin_does_not_prevent_an_uninstall() {
    in_parallel(INVALID, |(what, make)| {
        for name in ["05-x.conflist", "99-x.json"] {
            let node = Node::uninstalling_with_calico();
            node.write("20-net.conf", CONF);
            make(&node.net(name));
            let before = node.tree();
            for killed in [false, true] {
                let mut agent = node.start();
                until(what, || node.chained(LIST) && !node.net("20-net.conf").exists());
                if killed {
                    agent.kill();
                    agent = node.start_args(&["uninstall"], &[]);
                } else {
                    agent.signal(nix::sys::signal::Signal::SIGTERM);
                }
                assert_eq!(agent.wait(), Some(0), "{what}: {}", agent.log());
                assert_eq!(node.tree(), before, "{what}");
            }
        }
    });
}

#[test]
fn chained_conflist_that_becomes_invalid_does_not_prevent_an_uninstall() {
    in_parallel(INVALID, |(what, make)| {
        let node = Node::uninstalling_with_calico();
        node.write("20-x.conflist", CALICO);
        let mut agent = node.start_ready();
        assert!(node.chained("20-x.conflist"));
        fs::remove_file(node.net("20-x.conflist")).unwrap();
        make(&node.net("20-x.conflist"));
        assert_eq!(agent.stop(), Some(0), "{what}: {}", agent.log());
        let left: Vec<String> = node.tree().into_keys().collect();
        assert_eq!(left, ["etc/10-calico.conflist", "etc/20-x.conflist"], "{what}");
        assert_eq!(node.text(LIST), CALICO);
    });
}
