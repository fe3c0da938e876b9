//! A pod's network namespace with a neighbour, joined by a veth pair. Needs root.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use iptables::IPTables;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{getsockopt, sockopt};

static COUNT: AtomicU32 = AtomicU32::new(0);

pub const POD: [&str; 2] = ["10.99.0.1", "fd99::1"];
pub const NEIGHBOUR: [&str; 2] = ["10.99.0.2", "fd99::2"];

/// Two namespaces; both go when this is dropped, also when a test fails.
pub struct Namespaces {
    pod: String,
    neighbour: String,
}

impl Namespaces {
    pub fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |role| format!("l5d-test-{}-{number}-{role}", id());
        let these = Namespaces { pod: name("pod"), neighbour: name("nbr") };
        ip(&format!("netns add {}", these.pod));
        ip(&format!("netns add {}", these.neighbour));
        ip(&format!(
            "link add eth0 netns {} type veth peer name eth0 netns {}",
            these.pod, these.neighbour
        ));
        for (name, addresses) in [(&these.pod, POD), (&these.neighbour, NEIGHBOUR)] {
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} addr add {}/24 dev eth0", addresses[0]));
            ip(&format!("-n {name} addr add {}/64 dev eth0 nodad", addresses[1]));
        }
        these
    }

    /// What a runtime passes as CNI_NETNS.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/var/run/netns").join(&self.pod)
    }

    /// Listens on `port` of the pod, both families. Each connection is told `name` and
    /// the address that the connection was for.
    pub fn serve_in_pod(&self, name: &'static str, port: u16) {
        serve(&self.pod, name, port);
    }

    /// The same in the neighbour.
    pub fn serve_in_neighbour(&self, name: &'static str, port: u16) {
        serve(&self.neighbour, name, port);
    }

    /// What answers to a connection from the pod as user `uid`.
    pub fn connect_from_pod(&self, uid: u32, address: &str, port: u16) -> String {
        connect(&self.pod, uid, address, port)
    }

    pub fn connect_from_neighbour(&self, address: &str, port: u16) -> String {
        connect(&self.neighbour, 0, address, port)
    }

    /// Runs a program inside the pod's namespace and returns its output.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.pod, program])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Lists the rules of table `nat` in the pod's namespace, one `-A` line each, as another reader than the
    /// product's own. `program` is such as `iptables-nft`.
    pub fn nat(&self, program: &str) -> String {
        let netns = File::open(self.path()).unwrap();
        // The crate needs a `&'static str`.
        let cmd = String::leak(program.to_owned());
        let list = move || {
            setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
            let iptables = IPTables { cmd, has_check: true, has_wait: true, is_numeric: false };
            iptables.list_table("nat").unwrap()
        };
        let lines = thread::spawn(list).join().unwrap();
        // The crate returns an empty list when the program fails. A real list has chain policies.
        assert!(lines.iter().any(|line| line.starts_with("-P ")), "{program}: {lines:?}");
        let rules: Vec<_> = lines.into_iter().filter(|line| line.starts_with("-A ")).collect();
        rules.join("\n")
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.pod, &self.neighbour] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().expect("iproute2 is needed");
    assert!(
        output.status.success(),
        "ip {args} (this test needs root): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The thread enters the namespace for good.
fn enter(name: &str) {
    let file = File::open(format!("/var/run/netns/{name}")).unwrap();
    setns(file, CloneFlags::CLONE_NEWNET).unwrap();
}

fn serve(namespace: &str, name: &'static str, port: u16) {
    let namespace = namespace.to_owned();
    let listener = thread::spawn(move || {
        enter(&namespace);
        TcpListener::bind(("::", port)).unwrap()
    })
    .join()
    .unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = writeln!(stream, "{name} {}", original(&stream));
        }
    });
}

/// SO_ORIGINAL_DST, as the proxy asks for it.
fn original(stream: &TcpStream) -> SocketAddr {
    let local = stream.local_addr().unwrap();
    let IpAddr::V6(address) = local.ip() else {
        panic!("listeners are IPv6 sockets");
    };
    let original = if address.to_ipv4_mapped().is_some() {
        getsockopt(stream, sockopt::OriginalDst).map(|found| {
            let address = u32::from_be(found.sin_addr.s_addr);
            (IpAddr::from(address.to_be_bytes()), found.sin_port)
        })
    } else {
        getsockopt(stream, sockopt::Ip6tOriginalDst)
            .map(|found| (IpAddr::from(found.sin6_addr.s6_addr), found.sin6_port))
    };
    match original {
        Ok((address, port)) => SocketAddr::new(address, u16::from_be(port)),
        Err(_) => SocketAddr::new(local.ip().to_canonical(), local.port()),
    }
}

/// Another user cannot be a thread, so the shell connects.
fn connect(namespace: &str, uid: u32, address: &str, port: u16) -> String {
    let script = format!("exec 3<>/dev/tcp/{address}/{port} && cat <&3");
    let output = Command::new("ip")
        .args(["netns", "exec", namespace, "setpriv"])
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .args(["--clear-groups", "timeout", "5", "bash", "-c", &script])
        .output()
        .unwrap();
    if output.status.success() {
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    } else if String::from_utf8_lossy(&output.stderr).contains("refused") {
        "refused".to_owned()
    } else {
        format!("{output:?}")
    }
}
