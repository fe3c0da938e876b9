//! A pod's network namespace with a neighbour, joined by a veth pair. Needs root.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::thread;
use std::time::Duration;

use linkerd2_cni::netns::{self, link};
use nix::sys::socket::{getsockopt, sockopt};

use crate::child::must;

pub const POD: [&str; 2] = ["10.99.0.1", "fd99::1"];
pub const NEIGHBOUR: [&str; 2] = ["10.99.0.2", "fd99::2"];

const WORK_BUDGET: Duration = Duration::from_secs(60);

/// The two network namespaces. They have no names: only open files of this process keep them, so
/// the kernel removes them even if the process is killed.
pub struct Namespaces {
    pod: File,
    neighbour: File,
}

impl Namespaces {
    /// Creates both namespaces, with IPv6 addresses if the kernel has IPv6.
    pub fn new() -> Self {
        let pod = netns::create().unwrap();
        let neighbour = netns::create().unwrap();
        let peer_netns = neighbour.try_clone().unwrap();
        run_in(&pod, move || link::create_veth_pair("eth0", peer_netns)).unwrap();
        let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
        for (netns, [ipv4, ipv6]) in [(&pod, POD), (&neighbour, NEIGHBOUR)] {
            run_in(netns, move || {
                link::set_up("lo").unwrap();
                link::set_up("eth0").unwrap();
                link::add_address("eth0", ipv4.parse().unwrap(), 24).unwrap();
                if has_ipv6 {
                    link::add_address("eth0", ipv6.parse().unwrap(), 64).unwrap();
                }
            });
        }
        Namespaces { pod, neighbour }
    }

    /// Returns the path of the pod's netns, for `CNI_NETNS`.
    pub fn path(&self) -> PathBuf {
        path(&self.pod)
    }

    pub fn neighbour_path(&self) -> PathBuf {
        path(&self.neighbour)
    }

    /// Listens on `port` of the pod. Sends to each client a line with `name` and the destination
    /// that the client chose.
    pub fn serve_in_pod(&self, name: &'static str, port: u16) {
        serve(&self.pod, name, port);
    }

    pub fn serve_in_neighbour(&self, name: &'static str, port: u16) {
        serve(&self.neighbour, name, port);
    }

    pub fn connect_from_pod(&self, uid: u32, address: &str, port: u16) -> String {
        connect(&self.pod, uid, address, port)
    }

    pub fn connect_from_neighbour(&self, address: &str, port: u16) -> String {
        connect(&self.neighbour, 0, address, port)
    }

    /// Adds a second interface to the pod, as Multus does: `10.98.0.1`, `fd98::1`. The neighbour's
    /// addresses end in 2.
    pub fn add_network(&self) {
        let neighbour = path(&self.neighbour);
        self.sh(&format!(
            "ip link add net1 type veth peer name net1 netns {}",
            neighbour.display()
        ));
        for (netns, end) in [(&self.pod, 1), (&self.neighbour, 2)] {
            let set_up = format!(
                "ip link set net1 up && ip addr add 10.98.0.{end}/24 dev net1 && \
                 ip addr add fd98::{end}/64 dev net1 nodad"
            );
            run_program_in(netns, "sh", &["-c", &set_up]);
        }
    }

    /// Adds a link-local address to the pod and to the neighbour. The kernel uses these addresses
    /// at once, because it does not check them for duplicates. Returns the neighbour's address as
    /// the pod writes it.
    pub fn add_link_local(&self) -> String {
        for (netns, end) in [(&self.pod, 1), (&self.neighbour, 2)] {
            let add = format!("ip addr add fe80::99:{end}/64 dev eth0 nodad");
            run_program_in(netns, "sh", &["-c", &add]);
        }
        "fe80::99:2%eth0".to_owned()
    }

    /// Runs `work` in the pod's netns.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        run_in(&self.pod, work)
    }

    pub fn run(&self, program: &str, args: &[&str]) -> String {
        run_program_in(&self.pod, program, args)
    }

    pub fn sh(&self, command: &str) -> String {
        self.run("sh", &["-c", command])
    }

    /// Lists the rules of table `nat` in the pod's netns, one `-A` line for each rule. They are
    /// listed by `program`, such as `iptables-nft`, so that the test does not depend on the
    /// product's own reader.
    pub fn nat(&self, program: &str) -> String {
        let lines = self.run(program, &["-w", "-t", "nat", "-S"]);
        let rules: Vec<_> = lines.lines().filter(|line| line.starts_with("-A ")).collect();
        rules.join("\n")
    }
}

/// Returns a path by which other programs can open an open file of this process.
pub fn path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", id(), file.as_raw_fd()))
}

fn run_in<T: Send + 'static>(netns: &File, work: impl FnOnce() -> T + Send + 'static) -> T {
    netns::run(&path(netns), WORK_BUDGET, work).expect("this test needs root")
}

pub(crate) fn run_program_in(netns: &File, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    run_in(netns, move || must(&mut command))
}

pub(crate) fn serve(netns: &File, name: &'static str, port: u16) {
    let listener = run_in(netns, move || listen(port)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = writeln!(stream, "{name} {}", original_destination(&stream));
        }
    });
}

/// Listens on all addresses of both families, or on those of IPv4 if the kernel has no IPv6.
fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    }
}

/// Returns the destination before the redirect. A proxy reads it in the same way, by
/// `SO_ORIGINAL_DST`.
pub fn original_destination(stream: &TcpStream) -> SocketAddr {
    let local = stream.local_addr().unwrap();
    let original = if local.ip().to_canonical().is_ipv4() {
        getsockopt(stream, sockopt::OriginalDst).map(|destination| {
            let address = u32::from_be(destination.sin_addr.s_addr);
            (IpAddr::from(address.to_be_bytes()), destination.sin_port)
        })
    } else {
        getsockopt(stream, sockopt::Ip6tOriginalDst)
            .map(|destination| (IpAddr::from(destination.sin6_addr.s6_addr), destination.sin6_port))
    };
    match original {
        Ok((address, port)) => SocketAddr::new(address, u16::from_be(port)),
        // The connection was not redirected.
        Err(_) => SocketAddr::new(local.ip().to_canonical(), local.port()),
    }
}

/// Connects as the user `uid`, and returns the server's line. The connection is made by another
/// process, because a single thread of this process cannot change its user.
pub(crate) fn connect(netns: &File, uid: u32, address: &str, port: u16) -> String {
    let script = format!("exec 3<>/dev/tcp/{address}/{port} && cat <&3");
    let mut command = Command::new("timeout");
    command.args(["5", "bash", "-c", &script]).uid(uid).gid(uid);
    let output = run_in(netns, move || command.output()).unwrap();
    if output.status.success() {
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    } else if String::from_utf8_lossy(&output.stderr).contains("refused") {
        "refused".to_owned()
    } else {
        format!("{output:?}")
    }
}
