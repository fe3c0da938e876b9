//! Tests with unusable backends: the xtables lock is held, netlink is denied, the kernel is old, or
//! the plugin runs in a user namespace.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::child::{KilledOnDrop, has_strace, without_netlink};
use super::decisions::scene_without_ipv6_address;
use super::namespaces::{NEIGHBOUR, POD};
use super::until::until;
use super::{Call, Scene, start_listeners, start_meshed_api, write_program};
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

/// Creates a directory in which `iptables` is the legacy variant.
fn create_plain_legacy_programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-restore"] {
            let program = format!("/usr/sbin/{name}-legacy{suffix}");
            symlink(program, dir.path().join(format!("{name}{suffix}"))).unwrap();
        }
    }
    dir
}

/// Returns the command lines of the processes whose environment contains `text`.
fn processes_with_environment(text: &str) -> Vec<String> {
    let mut command_lines = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(text) {
            let path = entry.path().join("cmdline");
            command_lines.push(fs::read_to_string(path).unwrap_or_default());
        }
    }
    command_lines
}

#[test]
fn held_xtables_lock_fails_add_but_not_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("xtables.lock");
    let lock = path.to_str().unwrap();
    let programs = create_plain_legacy_programs();
    let plain = format!("{}:/usr/sbin", programs.path().display());
    let scene = Scene::meshed();
    let call = |command, mode: &str| {
        scene
            .in_mode(mode, command)
            .env("PATH", if mode == "plain" { &plain } else { "/usr/sbin" })
            .env("XTABLES_LOCKFILE", lock)
            .linkerd("ipv6", true)
    };
    call("ADD", "legacy").run().succeeded();
    let rules = scene.nat("iptables-legacy");

    let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    // With `auto`, CHECK can list the rules of native and nft. There are none, but this proves
    // nothing, because the legacy rules cannot be listed.
    let calls = [("ADD", "legacy"), ("ADD", "plain"), ("CHECK", "legacy"), ("CHECK", "auto")];
    std::thread::scope(|scope| {
        for (command, mode) in calls {
            let call = call(command, mode);
            scope.spawn(move || {
                let begin = Instant::now();
                let outcome = call.run();
                // The programs wait for the lock, because it may be released in time.
                assert!(begin.elapsed() > Duration::from_secs(4), "{command} {mode}");
                let holder = format!("{lock} is held by process {} (\"", std::process::id());
                if command == "CHECK" {
                    outcome.succeeded().logs(&holder);
                    return;
                }
                outcome.failed(121, " did not get the xtables lock in time: ");
                outcome.failed(121, &holder).advises("iptablesMode to native");
            });
        }
    });
    assert_eq!(processes_with_environment(lock), [] as [&str; 0]);
    drop(held);
    assert_eq!(scene.nat("iptables-legacy"), rules);
    call("CHECK", "legacy").run().succeeded();
}

#[test]
fn auto_falls_back_to_nft_and_legacy_with_working_rules() {
    let old_kernel = vec!["setarch", "--uname-2.6"];
    let mut cases = vec![("nft", old_kernel)];
    if has_strace() {
        cases.push(("legacy", without_netlink()));
    }
    for (backend, wrapper) in cases {
        let scene = Scene::meshed();
        start_listeners(&scene);
        let call =
            |command| scene.in_mode("auto", command).linkerd("ipv6", true).set("log_level", "info");
        let add = call("ADD").run_under(&wrapper).succeeded();
        add.logs(&format!(": redirected by {backend}, "));
        assert!(!scene.sh("nft list tables").contains("linkerd-cni"), "{backend}");
        for family in [0, 1] {
            assert_eq!(scene.inbound(POD[family], 8080), "inbound", "{backend}");
            assert_eq!(scene.outbound(0, NEIGHBOUR[family], 9000), "outbound", "{backend}");
        }
        call("CHECK").run_under(&wrapper).succeeded();
        call("ADD").run_under(&wrapper).succeeded();
        call("CHECK").run().succeeded();
    }
}

#[test]
fn error_without_a_usable_backend_names_the_cause_for_each_backend() {
    if !has_strace() {
        return;
    }
    let scene = scene_without_ipv6_address();
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("xtables.lock");
    let _held = Flock::lock(File::create(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
    let call = scene.in_mode("auto", "ADD").env("XTABLES_LOCKFILE", &lock).linkerd("ipv6", "auto");
    let outcome = call.run_under(&without_netlink());
    for cause in [
        "no backend is usable: the kernel rejected the transaction: EPERM",
        "/iptables-nft-restore failed: ",
        "/iptables-legacy-restore did not get the xtables lock in time: ",
        lock.to_str().unwrap(),
    ] {
        outcome.failed(121, cause);
    }
    outcome.advises("CAP_NET_ADMIN");
    outcome.advises("holds the lock");
    // The plugin waits for the lock once. Its deadline leaves no time for four waits.
    let (_, msg) = outcome.error();
    assert_eq!(msg.matches(" did not get the xtables lock in time: ").count(), 1, "{msg}");
}

/// The pod may get an IPv6 address later, so IPv4 rules alone are not enough.
#[test]
fn add_fails_without_rules_if_ipv6_cannot_be_redirected() {
    let scene = scene_without_ipv6_address();
    let programs = tempfile::tempdir().unwrap();
    for suffix in ["", "-restore"] {
        let name = format!("iptables-nft{suffix}");
        symlink(format!("/usr/sbin/{name}"), programs.path().join(name)).unwrap();
        let path = programs.path().join(format!("ip6tables-nft{suffix}"));
        write_program(&path, "echo Table does not exist >&2\nexit 4");
    }
    let add = |ipv6: Value| {
        scene.in_mode("nft", "ADD").env("PATH", programs.path()).linkerd("ipv6", ipv6).run()
    };
    add(json!("auto")).failed(121, "Table does not exist");
    assert!(!scene.has_rules());
    add(json!(false)).succeeded();
}

/// Returns the first `count` odd ports.
fn odd_ports(count: u16) -> Vec<String> {
    (0..count).map(|port| (2 * port + 1).to_string()).collect()
}

#[test]
fn rejected_transaction_names_the_object_and_auto_falls_back() {
    let scene = Scene::meshed();
    // Create a table that another process owns.
    let netns = format!("--net={}", scene.path().display());
    let mut owner = Command::new("nsenter");
    owner.args([&netns, "nft", "-i"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut owner = KilledOnDrop(owner.spawn().unwrap());
    let mut stdin = owner.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"add table ip6 linkerd-cni { flags owner; }\n").unwrap();
    until("the table exists", || scene.sh("nft list tables").contains("linkerd-cni"));

    let call = |mode| scene.in_mode(mode, "ADD").linkerd("ipv6", true);
    // The kernel also reports an error for each later message, and quotes the message. For a long
    // list, these errors exceed the receive buffer.
    for ports in [1, 30_000] {
        let outcome = call("native").linkerd("outbound-ports-to-ignore", odd_ports(ports)).run();
        let outcome = outcome.failed(121, "the kernel rejected table ip6 linkerd-cni: EPERM: ");
        outcome.advises("another process owns this table");
    }
    assert!(!scene.sh("nft list tables").contains("ip linkerd-cni"));
    call("auto").run().succeeded();
    assert!(scene.has_rules());
}

/// Starts a process in its own user namespace and netns, as rootless runtimes do.
fn start_rootless_process() -> KilledOnDrop {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "cat"]).stdin(Stdio::piped());
    let helper = KilledOnDrop(command.spawn().unwrap());
    until("the user namespace exists", || {
        fs::read_to_string(format!("/proc/{}/comm", helper.0.id()))
            .is_ok_and(|name| name == "cat\n")
    });
    helper
}

#[test]
fn native_works_in_a_user_namespace_unless_there_are_too_many_rules() {
    let api = start_meshed_api();
    let rootless = start_rootless_process();
    let target = format!("--target={}", rootless.0.id());
    let inside = ["nsenter", &target, "--user", "--preserve-credentials"];
    let netns = format!("/proc/{}/ns/net", rootless.0.id());
    let call = |ports| {
        let call = Call::new("ADD", Path::new(&netns), &api).linkerd("iptables-mode", "native");
        call.linkerd("outbound-ports-to-ignore", odd_ports(ports))
    };
    let ruleset = || {
        let mut nft = Command::new(inside[0]);
        let output = nft.args(&inside[1..]).args(["--net", "nft", "list", "ruleset"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    call(2).run_under(&inside).succeeded();
    let rules = ruleset();
    assert!(rules.contains("tcp dport { 1, 3 } "), "{rules}");
    // These rules exceed the default send buffer, but not the largest one that the user may set.
    call(7000).run_under(&inside).succeeded();
    let rules = ruleset();
    assert!(rules.contains(", 13999 } "), "{rules}");

    // Use some 20 MB of rules, because the limit differs between machines.
    let subnet = |number: u32| format!("fd00::{:x}:{:x}/128", number >> 16, number & 0xffff);
    let subnets: Vec<String> = (0..600_000).step_by(2).map(subnet).collect();
    let outcome =
        call(2).linkerd("ipv6", true).linkerd("subnets-to-ignore", subnets).run_under(&inside);
    outcome.failed(121, "EMSGSIZE").advises("net.core.wmem_max");
    assert_eq!(ruleset(), rules);
}

/// The runtime creates the netns of a pod with `hostUsers: false` inside the pod's user namespace,
/// but calls the plugin outside of it.
#[test]
fn pod_with_a_user_namespace_is_redirected_only_by_native() {
    let api = start_meshed_api();
    let pod = start_rootless_process();
    let netns = format!("/proc/{}/ns/net", pod.0.id());
    let call = |mode: &str, command: &str| {
        Call::new(command, Path::new(&netns), &api).linkerd("iptables-mode", mode)
    };
    for mode in ["nft", "legacy"] {
        let outcome = call(mode, "ADD").run();
        outcome.failed(121, "iptables").advises("check that the node supports the backend of the chart's iptablesMode, or set another one");
    }
    call("native", "CHECK").run().failed(122, "");
    for mode in ["native", "auto"] {
        call(mode, "ADD").run().succeeded();
        assert_eq!(call(mode, "CHECK").run().succeeded().stdout, "");
    }
}

#[test]
fn foreign_accept_rule_bypasses_iptables_rules_but_not_native_rules() {
    for (program, mode, wanted) in [
        ("iptables-nft", "nft", "server"),
        ("iptables-legacy", "legacy", "server"),
        ("iptables-nft", "native", "outbound"),
        ("iptables-legacy", "native", "outbound"),
    ] {
        let scene = Scene::meshed();
        start_listeners(&scene);
        scene.sh(&format!("{program} -t nat -A OUTPUT -p tcp --dport 9000 -j ACCEPT"));
        let call = |command| scene.in_mode(mode, command);
        call("ADD").run().succeeded();
        call("CHECK").run().succeeded();
        assert_eq!(scene.outbound(0, NEIGHBOUR[0], 9000), wanted, "{program} {mode}");
        assert_eq!(scene.outbound(2102, NEIGHBOUR[0], 9000), "server", "{program} {mode}");
    }
}
