//! A network inside a pod, as KubeVirt and Docker make it: a bridge in the pod's netns, a netns
//! behind it, and a proxy like Linkerd's. Needs root.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use linkerd2_cni::netns;
use nix::unistd::{Uid, setfsuid};

use crate::namespaces::{Namespaces, connect, original_destination, path, run_program_in, serve};

/// Addresses of the bridge and of the netns behind it.
pub const BRIDGE: [&str; 2] = ["172.17.0.1", "fd17::1"];
pub const GUEST: [&str; 2] = ["172.17.0.2", "fd17::2"];

/// User of Linkerd's proxy.
const PROXY_UID: u32 = 2102;
const SECOND: Duration = Duration::from_secs(1);

/// A netns behind a bridge of the pod.
pub struct Guest {
    netns: File,
}

impl Guest {
    /// Creates the bridge `name` in the pod, and the guest with the addresses [`GUEST`]. The pod
    /// forwards the guest's packets and masquerades them, as KubeVirt's and Docker's pods do.
    pub fn behind_bridge(pod: &Namespaces, name: &str) -> Guest {
        pod.sh(&format!(
            "ip link add {name} type bridge && ip link set {name} up && \
             ip addr add {}/16 dev {name} && ip addr add {}/64 dev {name} nodad && \
             sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && \
             nft 'table ip inner {{ chain postrouting {{ type nat hook postrouting priority 100; \
             ip saddr 172.17.0.0/16 oifname != \"{name}\" masquerade; }}; }}; \
             table ip6 inner {{ chain postrouting {{ type nat hook postrouting priority 100; \
             ip6 saddr fd17::/64 oifname != \"{name}\" masquerade; }}; }}'",
            BRIDGE[0], BRIDGE[1]
        ));
        Guest::with_addresses(pod, name, GUEST)
    }

    /// Adds a guest with these addresses to the bridge `name` of the pod.
    pub fn with_addresses(pod: &Namespaces, name: &str, addresses: [&str; 2]) -> Guest {
        let guest = Guest { netns: netns::create().unwrap() };
        // The last number of the IPv4 address tells the guests of a bridge apart.
        let number = addresses[0].rsplit('.').next().unwrap();
        let netns = guest.path();
        pod.sh(&format!(
            "ip link add veth{number} type veth peer name eth0 netns {} && \
             ip link set veth{number} master {name} up",
            netns.display()
        ));
        guest.sh(&format!(
            "ip link set lo up && ip link set eth0 up && ip addr add {}/16 dev eth0 && \
             ip addr add {}/64 dev eth0 nodad && ip route add default via {} && \
             ip -6 route add default via {}",
            addresses[0], addresses[1], BRIDGE[0], BRIDGE[1]
        ));
        guest
    }

    pub fn path(&self) -> PathBuf {
        path(&self.netns)
    }

    pub fn sh(&self, command: &str) -> String {
        run_program_in(&self.netns, "sh", &["-c", command])
    }

    pub fn connect(&self, address: &str, port: u16) -> String {
        connect(&self.netns, 0, address, port)
    }

    pub fn serve(&self, name: &'static str, port: u16) {
        serve(&self.netns, name, port);
    }
}

/// Accepts connections at `address` in the pod and connects each to its original destination as the
/// proxy's user. The client first gets a line with `name` and that destination.
pub fn forward(pod: &Namespaces, name: &'static str, address: SocketAddr) {
    let pod_path = pod.path();
    let listener = pod.within(move || TcpListener::bind(address)).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let netns = pod_path.clone();
            thread::spawn(move || relay(&netns, name, client));
        }
    });
}

/// Connects to the client's original destination, and sends the client what that server responds.
fn relay(pod: &Path, name: &str, mut client: TcpStream) -> io::Result<()> {
    let destination = original_destination(&client);
    writeln!(client, "{name} {destination}")?;
    let connect = move || {
        // The kernel takes the user of a socket from the thread that creates it.
        setfsuid(Uid::from_raw(PROXY_UID));
        TcpStream::connect_timeout(&destination, 2 * SECOND)
    };
    let response = match netns::run(pod, 5 * SECOND, connect).map_err(io::Error::other)? {
        Ok(mut server) => {
            let mut text = String::new();
            server.read_to_string(&mut text)?;
            text
        }
        Err(error) => format!("{:?}", error.kind()),
    };
    client.write_all(response.as_bytes())?;
    client.shutdown(Shutdown::Write)
}

/// Starts a server at one address in the pod. Each client gets a line with `name` and the address
/// that the client chose.
pub fn serve_at(pod: &Namespaces, name: &'static str, address: SocketAddr) {
    let listener = pod.within(move || TcpListener::bind(address)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = writeln!(stream, "{name} {}", original_destination(&stream));
        }
    });
}
