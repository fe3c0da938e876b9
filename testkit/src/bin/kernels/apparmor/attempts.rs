//! Attempts of a program inside a container: which of them does a profile deny?

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio, id};
use std::thread::sleep;
use std::time::Duration;

use linkerd2_cni::netns;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use testkit::child::KilledOnDrop;

use super::Profile;
use crate::container::{Container, ContainerSpec, THIS_PROGRAM, bind, mount_this_program};

/// The capabilities of a privileged container.
const ALL_CAPABILITIES: &str = "\
    AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN \
    DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE \
    MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON \
    SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE \
    SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM";

/// Path at which a container of an attempt has the machine's `/proc`.
const MACHINE_PROC: &str = "/host/proc";
const MOUNT: &str = "mount a file system";
const UNCONFINED_NETNS: &str = "open the netns of an unconfined process in /proc";
const OWN_NETNS: &str = "open the netns of a process of the same container in /proc";
const CREATE_NETNS: &str = "create a netns";
const ATTEMPTS: [&str; 4] = [MOUNT, UNCONFINED_NETNS, OWN_NETNS, CREATE_NETNS];

/// Returns the capabilities of a privileged container, as runc names them.
pub fn all_capabilities() -> Vec<String> {
    ALL_CAPABILITIES.split(' ').map(|name| format!("CAP_{name}")).collect()
}

/// Runs this program inside a container, as `kernels wait` or `kernels attempt PID`.
pub fn run_inside(arguments: &[String]) {
    match arguments {
        [command] if command == "wait" => {
            println!("waiting");
            loop {
                sleep(Duration::from_secs(3600));
            }
        }
        [command, pid] if command == "attempt" => {
            for name in ATTEMPTS {
                let result = match attempt(name, pid) {
                    Ok(()) => "allowed".to_owned(),
                    Err(error) => error.to_string(),
                };
                println!("{name}: {result}");
            }
        }
        _ => panic!("{arguments:?}"),
    }
}

/// Attempts what `name` says. `pid` is the machine's PID of an unconfined process.
fn attempt(name: &str, pid: &str) -> io::Result<()> {
    match name {
        MOUNT => Ok(mount(Some("none"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>)?),
        UNCONFINED_NETNS => File::open(format!("{MACHINE_PROC}/{pid}/ns/net")).map(drop),
        OWN_NETNS => {
            let mut command = Command::new(THIS_PROGRAM);
            let child = KilledOnDrop(command.arg("wait").stdout(Stdio::null()).spawn()?);
            File::open(format!("/proc/{}/ns/net", child.0.id())).map(drop)
        }
        CREATE_NETNS => netns::create().map(drop).map_err(io::Error::other),
        _ => panic!("{name}"),
    }
}

/// Asserts which attempts the profile denies in a container with the capabilities of `agent` and
/// SYS_PTRACE, and that all of them succeed in the same container without a profile.
pub fn assert_denied(profile: Profile, agent: &ContainerSpec) -> String {
    let mut spec = agent.clone();
    spec.arguments = [THIS_PROGRAM, "attempt", &id().to_string()].map(str::to_owned).to_vec();
    spec.capabilities.push("CAP_SYS_PTRACE".to_owned());
    spec.mounts.push(mount_this_program());
    fs::create_dir_all("/image/host/proc").unwrap();
    spec.mounts.push(bind("/proc", MACHINE_PROC, &["rprivate", "ro"]));

    let unconfined = results(&Container::start("unconfined", &spec, "").wait());
    assert!(unconfined.values().all(|result| result == "allowed"), "{unconfined:?}");
    let confined = results(&Container::start("confined", &spec, profile.name).wait());
    let denied = io::Error::from(Errno::EACCES).to_string();
    assert_eq!(confined[MOUNT], denied, "{confined:?}");
    assert_eq!(confined[UNCONFINED_NETNS], denied, "{confined:?}");
    assert_eq!(confined[CREATE_NETNS], "allowed", "{confined:?}");
    // CRI-O's profile lets a process trace others of the profile, and only `abstractions/base` lets
    // a process be traced.
    let own = if profile.can_be_traced() { "allowed" } else { &denied };
    assert_eq!(confined[OWN_NETNS], *own, "{confined:?}");
    let names = ATTEMPTS.into_iter().filter(|name| confined[*name] == denied);
    format!("denies to {}", names.collect::<Vec<_>>().join(", and to "))
}

/// Reads the results that a container has logged.
fn results(log: &str) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    for line in log.lines() {
        let (name, result) = line.split_once(": ").unwrap_or_else(|| panic!("{log}"));
        results.insert(name.to_owned(), result.to_owned());
    }
    assert_eq!(results.len(), ATTEMPTS.len(), "{log}");
    results
}
