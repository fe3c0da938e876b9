//! What the plugin does if a backend is not usable: the xtables lock is held, or netlink is denied.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use super::namespaces::Namespaces;
use super::{Call, meshed_api};

/// A directory in which `iptables` is the legacy variant.
fn legacy_as_plain() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-restore"] {
            let program = format!("/usr/sbin/{name}-legacy{suffix}");
            symlink(program, dir.path().join(format!("{name}{suffix}"))).unwrap();
        }
    }
    dir
}

/// Returns the processes that have `text` in their environment, except this one.
fn processes_with(text: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(text)
        })
        .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default())
        .collect()
}

#[test]
fn a_held_xtables_lock_fails_add_and_check_with_its_holder_and_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("xtables.lock");
    let lock = path.to_str().unwrap();
    let programs = legacy_as_plain();
    let plain = format!("{}:/usr/sbin", programs.path().display());
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let call = |command, mode: &str| {
        Call::new(command, &namespaces.path(), &api)
            .env("PATH", if mode == "plain" { &plain } else { "/usr/sbin" })
            .env("XTABLES_LOCKFILE", lock)
            .linkerd("iptables-mode", json!(mode))
            .linkerd("ipv6", json!(true))
    };
    call("ADD", "legacy").run().succeeded();
    let rules = namespaces.nat("iptables-legacy");

    let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    let calls = [("ADD", "legacy"), ("ADD", "plain"), ("CHECK", "legacy")];
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (command, mode) in calls {
            let call = call(command, mode);
            scope.spawn(move || {
                let outcome = call.run();
                let (code, msg) = outcome.error();
                assert_eq!(code, 121, "{command} {mode}: {msg}");
                assert!(msg.contains(" did not get the xtables lock in time: "), "{msg}");
                let holder = format!("{lock} is held by process {} (\"", std::process::id());
                assert!(msg.contains(&holder), "{msg}");
                let remedy = outcome.json()["details"].to_string();
                assert!(remedy.contains("iptablesMode to native"), "{remedy}");
            });
        }
    });
    println!("failed after {:?}", started.elapsed());
    assert_eq!(processes_with(lock), [] as [&str; 0]);
    drop(held);
    assert_eq!(namespaces.nat("iptables-legacy"), rules);
    call("CHECK", "legacy").run().succeeded();
}

#[test]
fn a_lock_that_is_released_in_time_only_delays_add() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("xtables.lock");
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    let call = Call::new("ADD", &namespaces.path(), &api)
        .env("XTABLES_LOCKFILE", path.to_str().unwrap())
        .linkerd("iptables-mode", json!("legacy"));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| call.run());
        super::until::until("iptables waits for the lock", || waits_for(&path));
        drop(held);
        add.join().unwrap().succeeded();
    });
    assert!(namespaces.nat("iptables-legacy").contains("PROXY_INIT_OUTPUT"));
}

/// Whether another process has the lock file open. It has it only to lock it.
fn waits_for(path: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let others = processes.filter(|entry| *entry.file_name() != *std::process::id().to_string());
    others
        .flat_map(|entry| fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten())
        .any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link == path))
}
