//! A pod's network namespace with a neighbour, joined by a veth pair. Needs root.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, id};
use std::thread;

use linkerd2_cni::netns;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{getsockopt, sockopt};

pub const POD: [&str; 2] = ["10.99.0.1", "fd99::1"];
pub const NEIGHBOUR: [&str; 2] = ["10.99.0.2", "fd99::2"];

/// Two namespaces without names: only open files of this process keep them, so that they also go when it is killed.
pub struct Namespaces {
    pod: File,
    neighbour: File,
}

impl Namespaces {
    pub fn new() -> Self {
        let these = Namespaces { pod: netns::fresh().unwrap(), neighbour: netns::fresh().unwrap() };
        let other = path(&these.neighbour);
        let pair = format!("link add eth0 type veth peer name eth0 netns {}", other.display());
        inside(&these.pod, "ip", &pair.split(' ').collect::<Vec<_>>());
        for (netns, addresses) in [(&these.pod, POD), (&these.neighbour, NEIGHBOUR)] {
            for args in [
                "link set lo up",
                "link set eth0 up",
                &format!("addr add {}/24 dev eth0", addresses[0]),
                &format!("addr add {}/64 dev eth0 nodad", addresses[1]),
            ] {
                inside(netns, "ip", &args.split(' ').collect::<Vec<_>>());
            }
        }
        these
    }

    /// What a runtime passes as CNI_NETNS.
    pub fn path(&self) -> PathBuf {
        path(&self.pod)
    }

    /// The neighbour's namespace.
    pub fn neighbour_path(&self) -> PathBuf {
        path(&self.neighbour)
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
        inside(&self.pod, program, args)
    }

    /// Lists the rules of table `nat` in the pod's namespace, one `-A` line each, as another reader than the
    /// product's own. `program` is such as `iptables-nft`.
    pub fn nat(&self, program: &str) -> String {
        let lines = self.run(program, &["-w", "-t", "nat", "-S"]);
        let rules: Vec<_> = lines.lines().filter(|line| line.starts_with("-A ")).collect();
        rules.join("\n")
    }
}

/// Path of an open file of this process, which other programs can open too.
fn path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", id(), file.as_raw_fd()))
}

/// `nsenter` into the namespace, without the program to run there.
fn nsenter(netns: &File) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(netns).display()));
    command
}

/// Runs a program inside the namespace and returns its output.
fn inside(netns: &File, program: &str, args: &[&str]) -> String {
    let output = nsenter(netns).arg(program).args(args).output().expect("util-linux is needed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?} (this test needs root): {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn serve(netns: &File, name: &'static str, port: u16) {
    let netns = netns.try_clone().unwrap();
    let listener = thread::spawn(move || {
        // The thread stays in the namespace.
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
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
pub fn original(stream: &TcpStream) -> SocketAddr {
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
fn connect(netns: &File, uid: u32, address: &str, port: u16) -> String {
    let script = format!("exec 3<>/dev/tcp/{address}/{port} && cat <&3");
    let output = nsenter(netns)
        .arg("setpriv")
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
