//! PID 1 of the virtual machines of `scripts/maintainers/kernels`: runs each check in a process of
//! its own, and prints the results as a line of JSON on the serial console. `kernels NAME` is such
//! a process.

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

type Check = (&'static str, fn() -> String);

/// Modules are loaded when a check needs them, so the checks without nf_tables come first.
const CHECKS: &[Check] = &[
    ("auto without nf_tables", auto_without_nf_tables),
    ("auto without nf_tables and iptables", auto_without_any_backend),
    ("self-test", self_test),
    ("native", || redirects("native", "native", true)),
    ("nft", || redirects("nft", "nft", true)),
    ("legacy", || redirects("legacy", "legacy", true)),
    ("IPv6 disabled by sysctl", ipv6_disabled_by_sysctl),
    ("kernel memory", kernel_memory),
];
const CHECKS_WITHOUT_IPV6: &[Check] = &[
    ("self-test with ipv6.disable=1", self_test),
    ("native with ipv6.disable=1", || redirects("native", "native", false)),
    ("ipv6: true with ipv6.disable=1", ipv6_required),
];
const CHECK_BUDGET: Duration = Duration::from_secs(300);
/// Where a check hides a module. It is put back after the check.
const HIDDEN: &str = "/hidden.ko";
const NODE: &str = "/tmp/node";

fn main() {
    let mut checks = CHECKS.iter().chain(CHECKS_WITHOUT_IPV6);
    match std::env::args().nth(1) {
        Some(name) if id() != 1 => {
            let (_, check) = checks.find(|(known, _)| *known == name).expect("a check");
            println!("{}", check());
        }
        _ => run_all(),
    }
}

fn run_all() -> ! {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run")]
    {
        fs::create_dir_all(target).unwrap();
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
    }
    let command_line = fs::read_to_string("/proc/cmdline").unwrap();
    let checks = if command_line.contains("ipv6.disable=1") { CHECKS_WITHOUT_IPV6 } else { CHECKS };
    let mut results = Vec::new();
    for (name, _) in checks {
        let begin = Instant::now();
        let (passed, seen) = run(name);
        let _ = fs::rename(HIDDEN, nf_tables());
        let seconds = begin.elapsed().as_millis() as f64 / 1000.0;
        results.push(json!({"name": name, "passed": passed, "seen": seen, "seconds": seconds}));
    }
    println!("{}", json!({"kernel": release(), "checks": results}));
    Command::new("poweroff").arg("-f").status().unwrap();
    exit(0)
}

fn run(name: &str) -> (bool, String) {
    let mut output = tempfile::tempfile().unwrap();
    let mut command = Command::new("/proc/self/exe");
    command.arg(name).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let mut check = command.spawn().unwrap();
    let status = child::wait(&mut check, Deadline::after(CHECK_BUDGET)).unwrap();
    if status.is_none() {
        child::kill(&mut check);
    }
    let mut seen = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut seen).unwrap();
    let passed = status.is_some_and(|status| status.success());
    let problem = if status.is_none() { "timed out: " } else { "" };
    (passed, format!("{problem}{}", seen.trim()))
}

fn publish(annotations: &Value) {
    let containers = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    let metadata =
        json!({"name": "web", "namespace": "ns", "uid": UID, "annotations": annotations});
    let pod = json!({"metadata": metadata, "spec": {"containers": containers}}).to_string();
    node_copy::publish(Path::new("/tmp/run"), ["ns", "web", UID], &pod);
}

/// A call for the meshed pod, with `ipv6: auto` and without an API server.
fn call(command: &str, pod: &Namespaces, mode: &str) -> Call {
    Call::with_kubeconfig(command, &pod.path(), Path::new("/tmp/kubeconfig"))
        .linkerd("iptables-mode", mode)
        .linkerd("ipv6", "auto")
}

fn pod() -> Namespaces {
    publish(&json!({}));
    let pod = Namespaces::new();
    for (name, port) in [("inbound", 4143), ("outbound", 4140), ("admin", 4191)] {
        pod.serve_in_pod(name, port);
    }
    pod.serve_in_neighbour("server", 9000);
    pod
}

fn assert_redirected(pod: &Namespaces, with_ipv6: bool) {
    for (own, neighbour) in POD.into_iter().zip(NEIGHBOUR).take(1 + usize::from(with_ipv6)) {
        assert_eq!(pod.connect_from_neighbour(own, 8080), line_of("inbound", own, 8080));
        assert_eq!(pod.connect_from_neighbour(own, 4191), line_of("admin", own, 4191));
        let outbound = line_of("outbound", neighbour, 9000);
        assert_eq!(pod.connect_from_pod(0, neighbour, 9000), outbound);
        let server = line_of("server", neighbour, 9000);
        assert_eq!(pod.connect_from_pod(2102, neighbour, 9000), server);
    }
}

/// The line of a server of [`Namespaces`] to a connection that was for this address.
fn line_of(name: &str, address: &str, port: u16) -> String {
    format!("{name} {}", SocketAddr::new(address.parse().unwrap(), port))
}

/// ADD writes rules that redirect, also a second one, and CHECK finds them only then.
fn redirects(mode: &str, backend: &str, with_ipv6: bool) -> String {
    let pod = pod();
    call("CHECK", &pod, mode).run().failed(122, "");
    let begin = Instant::now();
    let add = call("ADD", &pod, mode).run().succeeded();
    let ms = begin.elapsed().as_millis();
    let by = format!(": redirected by {backend},");
    assert!(add.stderr.contains(&by), "{}", add.stderr);
    for _ in 0..2 {
        assert_redirected(&pod, with_ipv6);
        call("CHECK", &pod, mode).run().succeeded();
        call("ADD", &pod, mode).run().succeeded();
    }
    let families = if with_ipv6 { "IPv4 and IPv6" } else { "IPv4" };
    format!("{families} redirected by {backend}, ADD took {ms} ms")
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim().to_owned()
}

fn nf_tables() -> String {
    format!("/lib/modules/{}/kernel/net/netfilter/nf_tables.ko", release())
}

fn auto_without_nf_tables() -> String {
    fs::rename(nf_tables(), HIDDEN).unwrap();
    redirects("auto", "legacy", true)
}

fn auto_without_any_backend() -> String {
    fs::rename(nf_tables(), HIDDEN).unwrap();
    let outcome = call("ADD", &pod(), "auto").run_without_iptables();
    let (code, msg) = outcome.error();
    assert_eq!(code, 120, "{msg}");
    outcome.advises("nf_tables");
    format!("ADD fails with code {code}: {msg}")
}

/// Sets a sysctl of IPv6 for the interfaces that the pod has and for those that it gets.
fn set_ipv6(pod: &Namespaces, name: &str, value: u8) {
    let set = ["all", "default", "eth0"]
        .map(|scope| format!("echo {value} >/proc/sys/net/ipv6/conf/{scope}/{name}"));
    pod.sh(&set.join(" && "));
}

fn ipv6_disabled_by_sysctl() -> String {
    let pod = pod();
    set_ipv6(&pod, "disable_ipv6", 1);
    call("ADD", &pod, "native").run().succeeded();
    assert_redirected(&pod, false);
    call("CHECK", &pod, "native").run().succeeded();
    // Duplicate address detection would delay the address.
    set_ipv6(&pod, "accept_dad", 0);
    set_ipv6(&pod, "disable_ipv6", 0);
    pod.run("ip", &["addr", "add", &format!("{}/64", POD[1]), "dev", "eth0"]);
    assert_redirected(&pod, true);
    "IPv4 redirected, and IPv6 once the pod enables it".to_owned()
}

fn ipv6_required() -> String {
    let pod = pod();
    call("ADD", &pod, "native").linkerd("ipv6", true).run().succeeded();
    assert_redirected(&pod, false);
    call("CHECK", &pod, "native").linkerd("ipv6", true).run().succeeded();
    "IPv4 redirected".to_owned()
}

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
    let end = Instant::now() + Duration::from_secs(60);
    let mut lines = String::new();
    while !lines.contains("is installed and verified") {
        assert!(Instant::now() < end && agent.try_wait().unwrap().is_none(), "{lines}");
        sleep(Duration::from_millis(20));
        lines = fs::read_to_string(&log).unwrap();
    }
    child::kill(&mut agent);
    let passed = lines.split_once("self-test passed: ").unwrap_or_else(|| panic!("{lines}")).1;
    let passed = passed.lines().next().unwrap();
    let families = if Path::new("/proc/net/if_inet6").exists() { 2 } else { 1 };
    assert_eq!(passed.matches("bound").count(), 2 * families, "{passed}");
    passed.to_owned()
}

/// Kernel memory of ADD: with the plugin entry's lists, and with annotations of almost 256 KiB,
/// which Kubernetes allows.
fn kernel_memory() -> String {
    let ports = (1..=u16::MAX).step_by(2).map(|port| port.to_string()).collect::<Vec<_>>();
    let subnets = (0..4000).map(|n| format!("172.{}.{}.1/32", 16 + n / 250, n % 250));
    let longest = json!({
        "config.linkerd.io/skip-inbound-ports": ports.join(","),
        "config.linkerd.io/skip-subnets": subnets.collect::<Vec<_>>().join(","),
    });
    let [short, long] = [(json!({}), 16), (longest, 4)].map(|(annotations, pods)| {
        publish(&annotations);
        // The first round also loads modules.
        let [_, (used, left)] = [(); 2].map(|()| memory(pods));
        // The rules without annotations are smaller than what the kernel keeps of the namespaces
        // for a while.
        let is_freed = left <= (used / 4).max(128 * pods);
        assert!(is_freed, "{left} of {used} KiB not freed with the {pods} namespaces");
        used / pods
    });
    // The smallest object of kmalloc has 128 bytes on arm64 before Linux 6.5, so that elements of
    // sets take twice as much.
    assert!((1..512).contains(&short) && (short..24 << 10).contains(&long), "{short}, {long} KiB");
    format!("{short} KiB, {long} KiB with the longest annotations; freed with the pod")
}

/// KiB that the ADDs of these pods take, and KiB that the kernel has not freed after the pods.
fn memory(pods: u64) -> (u64, u64) {
    let first = kernel_use();
    let pods = (0..pods).map(|_| Namespaces::new()).collect::<Vec<_>>();
    let before = kernel_use();
    for pod in &pods {
        call("ADD", pod, "native").set("log_level", "warn").run().succeeded();
    }
    let used = kernel_use().saturating_sub(before);
    drop(pods);
    // The kernel removes namespaces in the background.
    let end = Instant::now() + Duration::from_secs(10);
    let mut left = u64::MAX;
    while left > used / 8 && Instant::now() < end {
        left = kernel_use().saturating_sub(first);
    }
    (used, left)
}

/// Memory of the kernel in KiB once it has settled. `MemFree` lacks the pages that each processor
/// keeps for itself.
fn kernel_use() -> u64 {
    let (mut last, mut same) = (0, 0);
    for _ in 0..60 {
        for slab in fs::read_dir("/sys/kernel/slab").unwrap() {
            let _ = fs::write(slab.unwrap().path().join("shrink"), "1");
        }
        sleep(Duration::from_millis(100));
        let info = fs::read_to_string("/proc/meminfo").unwrap();
        let fields = ["SUnreclaim:", "VmallocUsed:", "Percpu:"];
        let now: u64 = fields.iter().map(|name| kib_of(&info, name)).sum();
        same = if now.abs_diff(last) < 64 { same + 1 } else { 0 };
        last = now;
        if same == 6 {
            break;
        }
    }
    last
}

/// Returns a field of `/proc/meminfo`.
fn kib_of(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_end_matches(" kB").trim().parse().unwrap()
}
