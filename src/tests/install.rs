//! The built agent on a temporary host tree.

// Clippy's leave for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

#[path = "install/node.rs"]
mod node;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use node::{CALICO, Node, TEMPLATE, until};
use serde_json::{Value, json};

const CONF: &str =
    "{\"type\": \"bridge\", \"name\": \"net\", \"cniVersion\": \"0.4.0\",\n \"n\": 1e3}\n";

#[test]
fn a_node_gets_binary_kubeconfig_and_entry_and_gives_all_back_on_sigterm() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    fs::set_permissions(
        node.net("10-calico.conflist"),
        PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();

    let copied = fs::metadata(node.bin("linkerd-cni")).unwrap();
    assert_eq!(copied.mode() & 0o7777, 0o755);
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), node::PLUGIN);
    let kubeconfig = node.kubeconfig();
    assert_eq!(kubeconfig["users"][0]["user"]["token"], "token-1");
    assert_eq!(
        kubeconfig["clusters"][0]["cluster"]["server"],
        "https://[fd00::1]:443"
    );
    assert_eq!(
        fs::metadata(node.net("kubeconfig.json")).unwrap().mode() & 0o7777,
        0o600
    );
    assert_eq!(
        fs::metadata(node.net("10-calico.conflist")).unwrap().mode() & 0o7777,
        0o600
    );
    let list = node.json("10-calico.conflist");
    let mut expected: Value = serde_json::from_str(CALICO).unwrap();
    let mut entry: Value = serde_json::from_str(TEMPLATE).unwrap();
    entry["kubernetes"]["kubeconfig"] = json!("etc/kubeconfig.json");
    expected["plugins"].as_array_mut().unwrap().push(entry);
    assert_eq!(list, expected);
    assert_eq!(agent.get("/live").1, "alive\n");
    assert!(
        agent
            .get("/metrics")
            .1
            .contains("linkerd_cni_agent_ready 1\n")
    );

    let log = agent.log();
    let at = |line: String| {
        log.find(&line)
            .unwrap_or_else(|| panic!("no {line} in {log}"))
    };
    let wrote = at(format!(
        "Wrote linkerd CNI binaries to {}",
        node.root().join("bin").display()
    ));
    let created = at(format!(
        "Created CNI config {}",
        node.net("10-calico.conflist").display()
    ));
    assert!(wrote < at("Wrote kubeconfig".into()) && at("Wrote kubeconfig".into()) < created);

    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.tree(), before);
    assert!(!agent.log().contains("token-1"));
}

#[test]
fn a_rotated_token_reaches_the_kubeconfig_and_nothing_else_is_written() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
    let list = node.inode("10-calico.conflist");
    for turn in 2..6 {
        node.rotate(&format!("token-{turn}"));
        let token = format!("token-{turn}");
        until("the new token", || {
            node.kubeconfig()["users"][0]["user"]["token"] == token.as_str()
        });
    }
    agent.until_ready();
    assert_eq!(node.inode("10-calico.conflist"), list);
}

#[test]
fn whatever_is_taken_away_comes_back() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
    for round in 0..3 {
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        until("the binary", || node.bin("linkerd-cni").exists());
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        until("the kubeconfig", || node.net("kubeconfig.json").exists());
        fs::set_permissions(
            node.net("kubeconfig.json"),
            PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        until("the kubeconfig's mode", || {
            fs::metadata(node.net("kubeconfig.json")).is_ok_and(|file| file.mode() & 0o777 == 0o600)
        });
        // A damaged binary of the same length, and a foreign rewrite that drops us.
        let mut damaged = node::PLUGIN.to_vec();
        damaged[round] ^= 1;
        node.replace(&node.bin("linkerd-cni"), &damaged);
        until("the right binary", || {
            fs::read(node.bin("linkerd-cni")).is_ok_and(|bytes| bytes == node::PLUGIN)
        });
        node.replace(&node.net("10-calico.conflist"), CALICO.as_bytes());
        until("the entry", || node.chained("10-calico.conflist"));
    }
    agent.until_ready();
}

#[test]
fn readiness_names_what_is_wrong_and_recovers() {
    let node = Node::new();
    let mut agent = node.start();
    until("no network yet", || {
        agent.ready().1.contains("no network configuration yet")
    });
    assert_eq!(agent.ready().0, 500);
    node.write("10-calico.conflist", CALICO);
    agent.until_ready();

    // What the agent cannot heal stays visible: a token gone, a foreign list in front.
    fs::rename(node.sa(), node.root().join("away")).unwrap();
    until("kubeconfig wrong", || {
        agent.ready().1.starts_with("kubeconfig: cannot read")
    });
    fs::rename(node.root().join("away"), node.sa()).unwrap();
    agent.until_ready();
    node.write("05-ours.conf", r#"{"type":"x","name":"n"}"#);
    until("conversion", || node.chained("05-ours.conflist"));
    agent.until_ready();
    fs::remove_dir_all(node.root().join("bin")).unwrap();
    until("binary wrong", || agent.ready().1.starts_with("binary: "));
    fs::create_dir(node.root().join("bin")).unwrap();
    agent.until_ready();
    assert!(node.bin("linkerd-cni").exists());
}

#[test]
fn a_file_that_is_no_configuration_hurts_no_other_and_is_taken_up_once_it_is_one() {
    let node = Node::new();
    node.write("00-not.conf", "not json");
    node.write("01-empty.conflist", "");
    fs::create_dir(node.net("02-dir.conf")).unwrap();
    symlink("nowhere", node.net("03-link.conflist")).unwrap();
    node.write(
        "04-huge.conflist",
        &format!("{{\"x\":\"{}\"}}", "x".repeat(6 << 20)),
    );
    node.write("05-none.conflist", r#"{"name":"x","plugins":[]}"#);
    node.write("06-null.conflist", "null");
    node.write("07-half.conflist", &CALICO[..CALICO.len() / 2]);
    nix::unistd::mkfifo(&node.net("08-pipe.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.write("09-bom.conflist", &format!("\u{feff}{CALICO}"));
    node.write("10-calico.conflist", CALICO);
    node.write("20-other.json", r#"{"type":"x","name":"n"}"#);
    node.write("30-calico.conflist.cilium_bak", CALICO);
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();
    assert!(node.chained("10-calico.conflist"));
    for name in [
        "00-not.conf",
        "01-empty",
        "02-dir",
        "03-link",
        "04-huge",
        "05-none",
        "06-null",
        "07-half",
        "08-pipe",
        "09-bom",
    ] {
        let log = agent.log();
        let lines = log.lines().filter(|line| line.contains(name));
        assert_eq!(lines.count(), 1, "{name}: {log}");
    }
    // A writer that takes its time, as `cp` does.
    node.write("07-half.conflist", &CALICO[..CALICO.len() - 3]);
    thread::sleep(Duration::from_millis(60));
    node.write("07-half.conflist", CALICO);
    until("the completed file", || node.chained("07-half.conflist"));
    node.write("07-half.conflist", &CALICO[..CALICO.len() / 2]);
    node.write("01-empty.conflist", CALICO);
    until("the filled file", || node.chained("01-empty.conflist"));
    node.write("01-empty.conflist", "");
    agent.until_ready();
    agent.stop();
    assert_eq!(node.tree(), before);
}

#[test]
fn writers_that_are_not_atomic_converge() {
    let node = Node::new();
    let mut agent = node.start();
    for _ in 0..30 {
        // Create, then write, as `cp` does.
        let file = fs::File::create(node.net("10-calico.conflist")).unwrap();
        thread::yield_now();
        let mut file = file;
        for part in CALICO.as_bytes().chunks(100) {
            std::io::Write::write_all(&mut file, part).unwrap();
        }
        drop(file);
        until("the entry", || node.chained("10-calico.conflist"));
    }
    agent.until_ready();
}

#[test]
fn a_conf_becomes_a_list_and_comes_back_with_its_bytes_and_mode() {
    let node = Node::new();
    node.write("10-net.conf", CONF);
    fs::set_permissions(node.net("10-net.conf"), PermissionsExt::from_mode(0o640)).unwrap();
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();
    assert!(!node.net("10-net.conf").exists());
    let list = node.json("10-net.conflist");
    assert_eq!(
        (&list["name"], &list["cniVersion"]),
        (&json!("net"), &json!("0.4.0"))
    );
    assert_eq!(node.types("10-net.conflist"), ["bridge", "linkerd-cni"]);

    // Its owner writes it again, as flannel's init container does at each start.
    node.write("10-net.conf", &CONF.replace("1e3", "2e3"));
    until("the new conf in the list", || {
        !node.net("10-net.conf").exists() && node.text("10-net.conflist").contains("2e3")
    });
    node.write("10-net.conf", CONF);
    until("the old conf in the list", || {
        !node.net("10-net.conf").exists() && node.text("10-net.conflist").contains("1e3")
    });
    agent.until_ready();

    // The record outlives the agent.
    agent.kill();
    let mut agent = node.start();
    agent.until_ready();
    agent.stop();
    let mut after = node.tree();
    if let Some(file) = after.get_mut("etc/10-net.conf") {
        // The second writer did not set the first one's mode.
        file.0 = 0o100640;
    }
    assert_eq!(after, before);
}

#[test]
fn a_conf_beside_a_list_that_was_not_made_from_it_is_left_alone() {
    let node = Node::new();
    node.write("10-net.conf", CONF);
    node.write("10-net.conflist", CALICO);
    let before = node.tree();
    let mut agent = node.start();
    until("the list", || node.chained("10-net.conflist"));
    assert_eq!(node.text("10-net.conf"), CONF);
    until("the reason", || {
        agent.ready().1.contains("was not made from it")
    });
    agent.stop();
    assert_eq!(node.tree(), before);
}

#[test]
fn a_json_is_only_taken_where_the_runtime_loads_it() {
    let node = Node::new();
    node.write("20-net.json", CONF);
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();
    assert!(node.chained("20-net.conflist") && !node.net("20-net.json").exists());
    agent.stop();
    assert_eq!(node.tree(), before);
}

#[test]
fn a_link_is_replaced_and_comes_back_and_its_target_is_never_written() {
    let node = Node::new();
    fs::write(node.root().join("real"), CALICO).unwrap();
    symlink("../real", node.net("10-calico.conflist")).unwrap();
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();
    assert!(node.chained("10-calico.conflist"));
    assert_eq!(
        fs::read_to_string(node.root().join("real")).unwrap(),
        CALICO
    );
    agent.stop();
    assert_eq!(node.tree(), before);
}

#[test]
fn what_changed_since_is_kept_and_only_our_entry_goes() {
    let node = Node::new();
    node.write("10-net.conf", CONF);
    node.write("20-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
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

#[test]
fn a_new_agent_adopts_what_is_right_without_writing_it() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.write("20-net.conf", CONF);
    let before = node.tree();
    let mut agent = node.start();
    agent.until_ready();
    agent.kill();
    let names = [
        "10-calico.conflist",
        "20-net.conflist",
        "kubeconfig.json",
        ".linkerd-cni-state",
        "../bin/linkerd-cni",
    ];
    let inodes = names.map(|name| node.inode(name));
    let mut agent = node.start();
    agent.until_ready();
    assert_eq!(names.map(|name| node.inode(name)), inodes);
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn leftovers_of_earlier_agents_go() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let before = node.tree();
    node.write(
        "01-linkerd-cni.conf",
        r#"{"type":"linkerd-cni","name":"x"}"#,
    );
    node.write("10-calico.conflist.install", "{");
    node.write("kubeconfig.json.install", "{");
    node.write(".linkerd-cni.1.2.3.tmp", "{");
    fs::write(node.bin("linkerd-cni.install"), "x").unwrap();
    let mut agent = node.start();
    agent.until_ready();
    agent.stop();
    assert_eq!(node.tree(), before);
}

#[test]
fn directories_that_go_and_come_back_are_served_again() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
    fs::remove_dir_all(node.root().join("etc")).unwrap();
    until("not ready", || agent.ready().0 == 500);
    fs::create_dir(node.root().join("etc")).unwrap();
    node.write("10-calico.conflist", CALICO);
    agent.until_ready();
    assert!(node.chained("10-calico.conflist"));
    // And the watch is on the new directory.
    node.replace(&node.net("10-calico.conflist"), CALICO.as_bytes());
    until("the entry", || node.chained("10-calico.conflist"));
}

#[test]
fn what_the_node_lacks_is_waited_for_and_nothing_is_chained_meanwhile() {
    type TakeAway = fn(&Node);
    let missing: [(&str, TakeAway); 4] = [
        ("token", |node| {
            fs::rename(node.sa().join("token"), node.sa().join("t")).unwrap()
        }),
        ("ca.crt", |node| {
            fs::rename(node.sa().join("ca.crt"), node.sa().join("t")).unwrap()
        }),
        ("bin", |node| {
            fs::remove_dir(node.root().join("bin")).unwrap()
        }),
        ("is empty", |node| node.rotate(" \n")),
    ];
    for (what, take_away) in missing {
        let node = Node::new();
        node.write("10-calico.conflist", CALICO);
        take_away(&node);
        let mut agent = node.start();
        until(what, || agent.ready().1.contains(what));
        assert_eq!(node.text("10-calico.conflist"), CALICO, "{what}");
        match what {
            "bin" => fs::create_dir(node.root().join("bin")).unwrap(),
            "is empty" => node.rotate("token-2"),
            name => fs::rename(node.sa().join("t"), node.sa().join(name)).unwrap(),
        }
        agent.until_ready();
        // Said once, though looked at again and again. (`bin` is in other lines too.)
        let said = agent.log().matches(what).count();
        assert!(said == 1 || what == "bin", "{what}: {}", agent.log());
        assert_eq!(agent.stop(), Some(0));
    }
    for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        let node = Node::new();
        node.write("10-calico.conflist", CALICO);
        let mut agent = node.start_with(&[(name, "")]);
        until(name, || {
            agent.ready().1.contains(&format!("{name} is not set"))
        });
        assert_eq!(node.text("10-calico.conflist"), CALICO);
        assert_eq!(agent.stop(), Some(0));
    }
}

#[test]
fn a_template_that_is_no_entry_ends_the_agent_with_the_reason() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let before = node.tree();
    for (vars, reason) in [
        (
            [("CNI_NETWORK_CONFIG", "{"), ("X", "")],
            "CNI_NETWORK_CONFIG is not JSON",
        ),
        (
            [("CNI_NETWORK_CONFIG", "[]"), ("X", "")],
            "is not a JSON object",
        ),
        (
            [("CNI_NETWORK_CONFIG", ""), ("X", "")],
            "there is no plugin configuration",
        ),
        (
            [
                ("CNI_NETWORK_CONFIG", ""),
                ("CNI_NETWORK_CONFIG_FILE", "/no/such"),
            ],
            "/no/such",
        ),
        (
            [("LINKERD_CNI_LOG_LEVEL", "loud"), ("X", "")],
            "Cannot parse log-level 'loud'",
        ),
    ] {
        let mut agent = node.start_with(&vars);
        assert_eq!(agent.wait(), Some(1), "{reason}");
        assert!(agent.log().contains(reason), "{}", agent.log());
    }
    assert_eq!(node.tree(), before);
}

#[test]
fn the_template_may_come_from_a_file_and_the_ca_from_another() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let (template, ca) = (node.root().join("template"), node.root().join("other-ca"));
    fs::write(&template, TEMPLATE).unwrap();
    fs::write(&ca, "other CA\n").unwrap();
    let mut agent = node.start_with(&[
        ("CNI_NETWORK_CONFIG", ""),
        ("CNI_NETWORK_CONFIG_FILE", template.to_str().unwrap()),
        ("KUBE_CA_FILE", ca.to_str().unwrap()),
    ]);
    agent.until_ready();
    let data = &node.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"];
    assert_eq!(data, "b3RoZXIgQ0E=");
}

#[test]
fn a_list_damaged_before_the_end_is_an_error_and_all_else_is_undone() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.write("20-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
    node.write("20-calico.conflist", "{");
    until("the damage seen", || {
        agent.log().contains("20-calico.conflist: is not JSON")
    });
    assert_eq!(agent.stop(), Some(1));
    assert!(agent.log().contains("cannot uninstall cni"));
    assert_eq!(node.text("10-calico.conflist"), CALICO);
    assert!(!node.net("kubeconfig.json").exists() && !node.bin("linkerd-cni").exists());
}

#[test]
fn a_signal_at_any_time_of_the_start_is_a_clean_end() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.write("20-net.conf", CONF);
    let before = node.tree();
    for delay in 0..12 {
        let mut agent = node.start();
        until("signals are taken over", || agent.takes_signals());
        thread::sleep(Duration::from_millis(delay));
        let signal = [Signal::SIGTERM, Signal::SIGINT][delay as usize % 2];
        agent.signal(signal);
        assert_eq!(agent.wait(), Some(0), "{}", agent.log());
        assert_eq!(node.tree(), before);
    }
}

#[test]
fn a_kill_at_any_time_never_strands_the_node() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.write("20-net.conf", CONF);
    let before = node.tree();
    for round in 0..40 {
        let mut agent = node.start();
        thread::sleep(Duration::from_micros(700 * (round % 20)));
        if round >= 20 {
            agent.signal(Signal::SIGTERM);
            thread::sleep(Duration::from_micros(300 * (round % 20)));
        }
        agent.kill();
        node.assert_not_stranded();
    }
    let mut agent = node.start();
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn upstreams_flag_with_one_dash_is_taken() {
    let node = Node::new();
    for (flag, status) in [("-log-level", 0), ("--log-level", 0)] {
        let mut agent = node.start_args(&[flag, "debug"], &[]);
        until("signals are taken over", || agent.takes_signals());
        assert_eq!(agent.stop(), Some(status));
    }
    let mut agent = node.start_args(&["-log-level", "loud"], &[]);
    assert_eq!(agent.wait(), Some(1));
    assert!(agent.log().contains("Cannot parse log-level 'loud'"));
}

#[test]
fn two_agents_at_once_do_no_harm() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let before = node.tree();
    let (mut one, mut other) = (node.start(), node.start());
    one.until_ready();
    other.until_ready();
    for _ in 0..10 {
        node.replace(&node.net("10-calico.conflist"), CALICO.as_bytes());
        until("the entry", || node.chained("10-calico.conflist"));
    }
    assert_eq!(node.types("10-calico.conflist").len(), 3);
    one.kill();
    assert_eq!(other.stop(), Some(0));
    assert_eq!(node.tree(), before);
}
