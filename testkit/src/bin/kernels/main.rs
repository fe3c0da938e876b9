//! PID 1 of the virtual machines of `scripts/maintainers/kernels`: runs each check in a process of
//! its own, and prints the results as a line of JSON on the serial console. `kernels NAME` is such
//! a process. In a container of a check, this program does what [`apparmor::run_inside`] says.

mod apparmor;
mod chart;
mod cluster;
mod container;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio, exit, id};
use std::thread::sleep;
use std::time::{Duration, Instant};

use linkerd2_cni::child;
use linkerd2_cni::deadline::Deadline;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use testkit::call::{Call, UID};
use testkit::namespaces::{NEIGHBOUR, Namespaces, POD};
use testkit::{cni, node_copy, program};

use crate::apparmor::{CONTAINERD, CONTAINERD_ALONE, CRI_O, CRI_O_ALONE};

type Check = (&'static str, fn() -> String);

/// The checks without nf_tables come first, because a check loads the modules that it needs, and
/// they stay loaded.
const CHECKS: &[Check] = &[
    ("auto without nf_tables", auto_without_nf_tables),
    ("auto without nf_tables and iptables", auto_without_any_backend),
    ("self-test", self_test),
    ("native", || assert_redirects("native", "native", Families::Both)),
    ("nft", || assert_redirects("nft", "nft", Families::Both)),
    ("legacy", || assert_redirects("legacy", "legacy", Families::Both)),
    ("IPv6 disabled by sysctl", ipv6_disabled_by_sysctl),
    ("kernel memory", kernel_memory),
];
const CHECKS_WITHOUT_IPV6: &[Check] = &[
    ("self-test with ipv6.disable=1", self_test),
    ("native with ipv6.disable=1", || assert_redirects("native", "native", Families::Ipv4)),
    ("ipv6: true with ipv6.disable=1", ipv6_required),
];
/// Each runtime's profile is checked as on a node with the package `apparmor` of Debian or Ubuntu,
/// and as on a node without the files of /etc/apparmor.d.
const APPARMOR_CHECKS: &[Check] = &[
    ("containerd: denied", || apparmor::denies(CONTAINERD)),
    ("containerd: agent", || apparmor::agent(CONTAINERD)),
    ("containerd: repair controller", || apparmor::repair_controller(CONTAINERD)),
    ("containerd without abstractions: denied", || apparmor::denies(CONTAINERD_ALONE)),
    ("containerd without abstractions: agent", || apparmor::agent(CONTAINERD_ALONE)),
    ("containerd without abstractions: repair controller", || {
        apparmor::repair_controller(CONTAINERD_ALONE)
    }),
    ("CRI-O: denied", || apparmor::denies(CRI_O)),
    ("CRI-O: agent", || apparmor::agent(CRI_O)),
    ("CRI-O: repair controller", || apparmor::repair_controller(CRI_O)),
    ("CRI-O without abstractions: denied", || apparmor::denies(CRI_O_ALONE)),
    ("CRI-O without abstractions: agent", || apparmor::agent(CRI_O_ALONE)),
    ("CRI-O without abstractions: repair controller", || apparmor::repair_controller(CRI_O_ALONE)),
];
const CHECK_BUDGET: Duration = Duration::from_secs(300);
/// Path to which a check moves the module nf_tables, so that the kernel does not find the module.
/// It is moved back after the check.
const HIDDEN_MODULE: &str = "/hidden.ko";
const NODE: &str = "/tmp/node";

/// The families in which a pod's connections are redirected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Families {
    Ipv4,
    Both,
}

fn main() {
    let mut checks = CHECKS.iter().chain(CHECKS_WITHOUT_IPV6).chain(APPARMOR_CHECKS);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if Path::new(container::THIS_PROGRAM).exists() {
        return apparmor::run_inside(&arguments);
    }
    match arguments.first() {
        Some(check_name) if id() != 1 => {
            let (_, check) = checks.find(|(name, _)| name == check_name).expect("a check");
            println!("{}", check());
        }
        _ => run_all(),
    }
}

/// Runs all checks that apply to this kernel, and switches the virtual machine off.
fn run_all() -> ! {
    mount_kernel_file_systems();
    let command_line = fs::read_to_string("/proc/cmdline").unwrap();
    let checks = if command_line.contains("security=apparmor") {
        APPARMOR_CHECKS
    } else if command_line.contains("ipv6.disable=1") {
        CHECKS_WITHOUT_IPV6
    } else {
        CHECKS
    };
    let mut results = Vec::new();
    for (name, _) in checks {
        let begin = Instant::now();
        let (passed, seen) = run_in_child(name);
        let _ = fs::rename(HIDDEN_MODULE, nf_tables_module());
        let seconds = begin.elapsed().as_millis() as f64 / 1000.0;
        results.push(json!({"name": name, "passed": passed, "seen": seen, "seconds": seconds}));
    }
    println!("{}", json!({"kernel": release(), "checks": results}));
    Command::new("poweroff").arg("-f").status().unwrap();
    exit(0)
}

fn mount_kernel_file_systems() {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run")]
    {
        fs::create_dir_all(target).unwrap();
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
    }
}

/// Runs a check in a process of its own. Returns whether the check passed, and the output.
fn run_in_child(name: &str) -> (bool, String) {
    let mut output = tempfile::tempfile().unwrap();
    let mut command = Command::new("/proc/self/exe");
    command.arg(name).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let mut check = command.spawn().unwrap();
    let status = child::wait(&mut check, Deadline::after(CHECK_BUDGET)).unwrap();
    if status.is_none() {
        child::kill(&mut check);
    }
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    match status {
        Some(status) => (status.success(), text.trim().to_owned()),
        None => (false, format!("timed out: {}", text.trim())),
    }
}

/// Publishes a meshed pod with these annotations in the node's copy.
fn publish(annotations: &Value) {
    let containers = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    let metadata =
        json!({"name": "web", "namespace": "ns", "uid": UID, "annotations": annotations});
    let pod = json!({"metadata": metadata, "spec": {"containers": containers}}).to_string();
    node_copy::publish(Path::new("/tmp/run"), ["ns", "web", UID], &pod);
}

/// A call for the meshed pod that [`publish`] has published, with `ipv6: auto` and without an API
/// server.
fn call(command: &str, pod: &Namespaces, mode: &str) -> Call {
    Call::with_kubeconfig(command, &pod.path(), Path::new("/tmp/kubeconfig"))
        .linkerd("iptables-mode", mode)
        .linkerd("ipv6", "auto")
}

/// Publishes the meshed pod without annotations. Returns its netns, in which servers stand for the
/// proxy.
fn start_pod() -> Namespaces {
    publish(&json!({}));
    let pod = Namespaces::new();
    serve_as_proxy(&pod);
    pod
}

/// Starts servers in a pod's netns, which stand for the proxy, and one in its neighbour's.
fn serve_as_proxy(pod: &Namespaces) {
    for (name, port) in [("inbound", 4143), ("outbound", 4140), ("admin", 4191)] {
        pod.serve_in_pod(name, port);
    }
    pod.serve_in_neighbour("server", 9000);
}

fn assert_redirected(pod: &Namespaces, families: Families) {
    let count = match families {
        Families::Ipv4 => 1,
        Families::Both => 2,
    };
    for (own, neighbour) in POD.into_iter().zip(NEIGHBOUR).take(count) {
        assert_eq!(pod.connect_from_neighbour(own, 8080), line_of("inbound", own, 8080));
        assert_eq!(pod.connect_from_neighbour(own, 4191), line_of("admin", own, 4191));
        let outbound = line_of("outbound", neighbour, 9000);
        assert_eq!(pod.connect_from_pod(0, neighbour, 9000), outbound);
        let server = line_of("server", neighbour, 9000);
        assert_eq!(pod.connect_from_pod(2102, neighbour, 9000), server);
    }
}

/// Returns the line that a server of [`Namespaces`] sends to a client that chose this destination.
fn line_of(name: &str, address: &str, port: u16) -> String {
    format!("{name} {}", SocketAddr::new(address.parse().unwrap(), port))
}

/// Asserts that ADD writes rules that redirect, even if it is repeated, and that CHECK fails before
/// the first ADD and succeeds afterwards.
fn assert_redirects(mode: &str, backend: &str, families: Families) -> String {
    let pod = start_pod();
    call("CHECK", &pod, mode).run().failed(122, "");
    let begin = Instant::now();
    let add = call("ADD", &pod, mode).run().succeeded();
    let ms = begin.elapsed().as_millis();
    add.logs(&format!(": redirected by {backend},"));
    for _ in 0..2 {
        assert_redirected(&pod, families);
        call("CHECK", &pod, mode).run().succeeded();
        call("ADD", &pod, mode).run().succeeded();
    }
    let redirected = match families {
        Families::Ipv4 => "IPv4",
        Families::Both => "IPv4 and IPv6",
    };
    format!("{redirected} redirected by {backend}, ADD took {ms} ms")
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim().to_owned()
}

fn nf_tables_module() -> String {
    format!("/lib/modules/{}/kernel/net/netfilter/nf_tables.ko", release())
}

/// Asserts that `auto` chooses iptables-legacy if the kernel has no nf_tables.
fn auto_without_nf_tables() -> String {
    fs::rename(nf_tables_module(), HIDDEN_MODULE).unwrap();
    assert_redirects("auto", "legacy", Families::Both)
}

/// Asserts that ADD fails if the kernel has no nf_tables and the node no iptables.
fn auto_without_any_backend() -> String {
    fs::rename(nf_tables_module(), HIDDEN_MODULE).unwrap();
    let outcome = call("ADD", &start_pod(), "auto").run_without_iptables();
    let (code, msg) = outcome.error();
    assert_eq!(code, 120, "{msg}");
    outcome.advises("nf_tables");
    format!("ADD fails with code {code}: {msg}")
}

/// Sets a sysctl of IPv6 for the pod's present interfaces and for its later ones.
fn set_ipv6(pod: &Namespaces, name: &str, value: u8) {
    for scope in ["all", "default", "eth0"] {
        pod.sh(&format!("echo {value} >/proc/sys/net/ipv6/conf/{scope}/{name}"));
    }
}

/// Asserts that a pod whose sysctls disable IPv6 is redirected with IPv4, and with IPv6 after it
/// has enabled IPv6.
fn ipv6_disabled_by_sysctl() -> String {
    let pod = start_pod();
    set_ipv6(&pod, "disable_ipv6", 1);
    call("ADD", &pod, "native").run().succeeded();
    assert_redirected(&pod, Families::Ipv4);
    call("CHECK", &pod, "native").run().succeeded();
    // Without this, duplicate address detection would delay the use of the address.
    set_ipv6(&pod, "accept_dad", 0);
    set_ipv6(&pod, "disable_ipv6", 0);
    pod.run("ip", &["addr", "add", &format!("{}/64", POD[1]), "dev", "eth0"]);
    assert_redirected(&pod, Families::Both);
    "IPv4 redirected, and IPv6 once the pod enables it".to_owned()
}

/// Asserts that `ipv6: true` does not fail ADD if the kernel has no IPv6.
fn ipv6_required() -> String {
    let pod = start_pod();
    call("ADD", &pod, "native").linkerd("ipv6", true).run().succeeded();
    assert_redirected(&pod, Families::Ipv4);
    call("CHECK", &pod, "native").linkerd("ipv6", true).run().succeeded();
    "IPv4 redirected".to_owned()
}

/// Starts an agent, and asserts that its self-test passes.
fn self_test() -> String {
    let path = |name: &str| Path::new(NODE).join(name);
    for dir in ["etc", "bin", "image", "sa"] {
        fs::create_dir_all(path(dir)).unwrap();
    }
    let network = json!({"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]});
    fs::write(path("etc/10-net.conflist"), network.to_string()).unwrap();
    fs::copy(program("linkerd-cni"), path("image/linkerd-cni")).unwrap();
    fs::write(path("sa/token"), "token").unwrap();
    fs::write(path("sa/ca.crt"), "CA").unwrap();
    let mut entry = cni::upstream_entry();
    entry["linkerd"]["iptables-mode"] = json!("auto");
    entry["linkerd"]["ipv6"] = json!("auto");
    let log = path("log");
    let mut agent = Command::new(program("linkerd2-cni-install"))
        .env("CONTAINER_MOUNT_PREFIX", NODE)
        .env("CONTAINER_CNI_BIN_DIR", path("image"))
        .env("DEST_CNI_BIN_DIR", "bin")
        .env("DEST_CNI_NET_DIR", "etc")
        .env("CNI_NETWORK_CONFIG", entry.to_string())
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "443")
        .env("LINKERD_CNI_SERVICE_ACCOUNT_DIR", path("sa"))
        .env("LINKERD_CNI_SELF_TEST", "true")
        .env("LINKERD_CNI_WATCH_PODS", "false")
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut lines = String::new();
    while !lines.contains("is installed and verified") {
        assert!(Instant::now() < deadline && agent.try_wait().unwrap().is_none(), "{lines}");
        sleep(Duration::from_millis(20));
        lines = fs::read_to_string(&log).unwrap();
    }
    child::kill(&mut agent);
    let Some((_, rest)) = lines.split_once("self-test passed: ") else {
        panic!("{lines}");
    };
    let result = rest.lines().next().unwrap();
    let families = if Path::new("/proc/net/if_inet6").exists() { 2 } else { 1 };
    // The self-test names an inbound and an outbound connection of each family.
    assert_eq!(result.matches("bound").count(), 2 * families, "{result}");
    result.to_owned()
}

/// Measures how much kernel memory the rules of a pod take: with the port lists of the plugin entry
/// alone, and with annotations of almost 256 KiB, the longest that Kubernetes allows. Asserts that
/// the kernel frees the memory together with the pod's netns.
fn kernel_memory() -> String {
    let ports = (1..=u16::MAX).step_by(2).map(|port| port.to_string()).collect::<Vec<_>>();
    let subnets = (0..4000).map(|n| format!("172.{}.{}.1/32", 16 + n / 250, n % 250));
    let longest_annotations = json!({
        "config.linkerd.io/skip-inbound-ports": ports.join(","),
        "config.linkerd.io/skip-subnets": subnets.collect::<Vec<_>>().join(","),
    });
    let short = memory_per_pod(&json!({}), 16);
    let long = memory_per_pod(&longest_annotations, 4);
    // The upper limits are generous, because elements of sets take twice as much memory on arm64
    // before Linux 6.5, where the smallest object of kmalloc has 128 bytes.
    assert!((1..512).contains(&short) && (short..24 << 10).contains(&long), "{short}, {long} KiB");
    format!("{short} KiB, {long} KiB with the longest annotations; freed with the pod")
}

/// Returns the kernel memory in KiB that the rules of a pod with these annotations take, measured
/// with this number of pods. Fails if the kernel does not free the memory with the pods.
fn memory_per_pod(annotations: &Value, pods: u64) -> u64 {
    publish(annotations);
    // The first measurement is not used, because it includes the modules that ADD loads.
    measure_memory(pods);
    let (used, left) = measure_memory(pods);
    // The kernel keeps some memory of removed namespaces for a while. It is more than the rules of
    // a pod without annotations take, so up to 128 KiB may be left for each pod.
    let is_freed = left <= (used / 4).max(128 * pods);
    assert!(is_freed, "{left} of {used} KiB not freed with the {pods} namespaces");
    used / pods
}

/// Returns the KiB that the rules of these pods take, and the KiB that are still in use after the
/// pods' namespaces were removed.
fn measure_memory(pods: u64) -> (u64, u64) {
    let before_pods = kernel_memory_in_use();
    let pods: Vec<Namespaces> = (0..pods).map(|_| Namespaces::new()).collect();
    let before_rules = kernel_memory_in_use();
    for pod in &pods {
        call("ADD", pod, "native").set("log_level", "warn").run().succeeded();
    }
    let used = kernel_memory_in_use().saturating_sub(before_rules);
    drop(pods);
    // The kernel removes namespaces in the background.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut left = u64::MAX;
    while left > used / 8 && Instant::now() < deadline {
        left = kernel_memory_in_use().saturating_sub(before_pods);
    }
    (used, left)
}

/// Returns the memory of the kernel in KiB, once it has not changed for some time. It is the sum of
/// three kinds of memory, because `MemFree` leaves out free pages that each processor keeps for
/// itself.
fn kernel_memory_in_use() -> u64 {
    let mut memory: u64 = 0;
    let mut stable_reads = 0;
    for _ in 0..60 {
        for slab in fs::read_dir("/sys/kernel/slab").unwrap() {
            let _ = fs::write(slab.unwrap().path().join("shrink"), "1");
        }
        sleep(Duration::from_millis(100));
        let info = fs::read_to_string("/proc/meminfo").unwrap();
        let fields = ["SUnreclaim:", "VmallocUsed:", "Percpu:"];
        let current: u64 = fields.iter().map(|name| kib_of(&info, name)).sum();
        if current.abs_diff(memory) < 64 {
            stable_reads += 1;
        } else {
            stable_reads = 0;
        }
        memory = current;
        if stable_reads == 6 {
            break;
        }
    }
    memory
}

/// Returns a field of `/proc/meminfo`, in KiB.
fn kib_of(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_end_matches(" kB").trim().parse().unwrap()
}
