//! Actions that disturb the node and the release, in random order.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use rand::rngs::StdRng;
use testkit::OnDrop;
use testkit::cluster::active;
use testkit::cluster::agent::{self, KUBECONFIG, Paused};
use testkit::cluster::containers::ctr;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::kubectl::kubectl;
use testkit::cluster::node::{
    COPY, copied_pods, kill_component, netns_of, pid_of, replace, restart_api_server,
    start_missing_components,
};

use crate::ledger::{self, Invariant};
use crate::load::started_without_api;
use crate::outages::{self, Cause};
use crate::world::{World, make_immutable};
use crate::{credential, running, runtime_dir};

#[derive(Clone, Copy)]
pub struct Action {
    pub name: &'static str,
    /// Whether the agent's process survives the action.
    pub keeps_agent: bool,
    perform: fn(&mut World),
}

const fn action(name: &'static str, keeps_agent: bool, perform: fn(&mut World)) -> Action {
    Action { name, keeps_agent, perform }
}

pub const ACTIONS: [Action; 21] = [
    action("agent killed (SIGKILL)", false, kill_agent),
    action("agent pod deleted", false, delete_pod),
    action("API server killed, started again", true, kill_api_server),
    action("API server and agent killed", false, kill_api_server_and_agent),
    action("API server stalled (SIGSTOP)", true, |world| stall(world, "kube-apiserver")),
    action("etcd stalled (SIGSTOP)", true, |world| stall(world, "etcd")),
    action("conflist rewritten by the primary CNI", true, rewrite_conflist),
    action("agent killed, conflist rewritten", false, kill_agent_and_rewrite_conflist),
    action("conflist deleted, written again", true, delete_conflist),
    action("kubeconfig deleted", true, delete_kubeconfig),
    action("token revoked (ServiceAccount recreated)", true, credential::revoke),
    action("token expired an hour ago, agent killed", false, |world| {
        credential::replace_with_invalid(world, credential::EXPIRED);
    }),
    action("token valid only in an hour, agent killed", false, |world| {
        credential::replace_with_invalid(world, credential::NOT_YET_VALID);
    }),
    action("CNI directories full, agent replaced", false, fill_disk),
    action("copy of the node's pods damaged", true, damage_copy),
    action("agent's watch of pods cut", true, cut_watch),
    action("helm upgrade", false, upgrade),
    action("helm rollback", false, rollback),
    action("kubectl rollout restart", false, rollout_restart),
    action("containerd killed, started again", true, restart_containerd),
    action("runtime's plugin directory swapped, agent killed", false, runtime_dir::swap),
];

/// Longest time until containerd serves pods again.
const RUNTIME_BUDGET: Duration = Duration::from_secs(120);
/// Most bytes that are written to fill a file system. It is enough, because
/// `scripts/maintainers/soak` mounts small file systems at the CNI directories.
const FILL_LIMIT: u64 = 256 << 20;
/// Longest time until an unmeshed and a meshed pod have started without the API server.
const WITHOUT_API_BUDGET: Duration = Duration::from_secs(90);

impl Action {
    pub fn perform(self, world: &mut World) {
        ledger::begin_action(self.name);
        (self.perform)(world);
    }
}

fn kill_agent(world: &mut World) {
    let old = agent::agent();
    let _ = kill(old.pid, Signal::SIGKILL);
    let begin = Instant::now();
    world.wait_for_recovery_and(begin, || {
        agent::find_agent().is_some_and(|next| next.pid != old.pid && next.ready)
    });
}

fn delete_pod(world: &mut World) {
    let old = agent::agent();
    let force = if world.rng.random_bool(0.5) { "--force --grace-period=0" } else { "" };
    kubectl(&format!("delete pod {} -n {NAMESPACE} --wait=false {force}", old.pod));
    let begin = Instant::now();
    world.wait_for_recovery_and(begin, || {
        agent::find_agent().is_some_and(|next| next.pod != old.pod)
    });
}

fn kill_api_server(world: &mut World) {
    kill_api_server_and(world, || {});
}

fn kill_api_server_and_agent(world: &mut World) {
    let agent = agent::agent();
    kill_api_server_and(world, || {
        let _ = kill(agent.pid, Signal::SIGKILL);
    });
}

/// Kills the API server, and calls `action`. The API server stays down until a meshed and an
/// unmeshed pod have started without it.
fn kill_api_server_and(world: &World, action: impl FnOnce()) {
    let before = started_without_api();
    {
        let _outage = outages::open(Cause::ApiServer);
        let _restart = OnDrop(|| {
            // The restart includes kubelet, which starts no pods meanwhile.
            let _node = outages::open(Cause::Node);
            restart_api_server();
        });
        kill_component("kube-apiserver");
        action();
        wait_for_starts_without_api(before);
    }
    world.wait_for_recovery(Instant::now());
}

/// Waits until an unmeshed and a meshed pod have started without the API server. `before` are the
/// numbers of these pods before the outage.
fn wait_for_starts_without_api(before: [usize; 2]) {
    let begin = Instant::now();
    loop {
        let started = started_without_api();
        if started[0] > before[0] && started[1] > before[1] {
            return;
        }
        if begin.elapsed() > WITHOUT_API_BUDGET {
            let description = format!(
                "unmeshed and meshed pods started without it: {started:?}, before {before:?}"
            );
            ledger::record_violation(Invariant::StartsWithoutApi, description);
            return;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Stops a component for some seconds. No bound on the start of pods holds meanwhile, because
/// kubelet waits for the API server before it starts a pod.
fn stall(world: &mut World, name: &str) {
    let pid = pid_of(name);
    {
        let _api = outages::open(Cause::ApiServer);
        let _node = outages::open(Cause::Node);
        let _stopped = Paused::process(pid);
        thread::sleep(Duration::from_secs(world.rng.random_range(5..20)));
    }
    world.wait_for_recovery(Instant::now());
}

/// Writes the conflist without the plugin entry, as the primary CNI does.
fn rewrite_conflist(world: &mut World) {
    let path = active::path("").expect("there is a conflist");
    let outage = outages::open(Cause::Unchained);
    let begin = Instant::now();
    replace(&path, "soak", &world.original, 0o644);
    world.wait_for_recovery(begin);
    drop(outage);
}

/// Kills the agent, and writes the conflist without the plugin entry. Pods start without the entry
/// until kubelet has started the agent again.
fn kill_agent_and_rewrite_conflist(world: &mut World) {
    let agent = agent::agent();
    let outage = outages::open(Cause::Unchained);
    let _ = kill(agent.pid, Signal::SIGKILL);
    rewrite_conflist(world);
    drop(outage);
}

fn delete_conflist(world: &mut World) {
    let path = active::path("").expect("there is a conflist");
    let missing = outages::open(Cause::NoConflist);
    let unchained = outages::open(Cause::Unchained);
    fs::remove_file(&path).expect("the conflist can be deleted");
    thread::sleep(Duration::from_millis(world.rng.random_range(500..3000)));
    let begin = Instant::now();
    replace(&path, "soak", &world.original, 0o644);
    drop(missing);
    world.wait_for_recovery(begin);
    drop(unchained);
}

fn delete_kubeconfig(world: &mut World) {
    let outage = outages::open(Cause::NoKubeconfig);
    let credential = outages::open(Cause::Credential);
    let begin = Instant::now();
    fs::remove_file(KUBECONFIG).expect("there is a kubeconfig");
    world.wait_for_recovery_and(begin, || Path::new(KUBECONFIG).exists());
    drop(outage);
    drop(credential);
}

fn fill_disk(world: &mut World) {
    let old = agent::agent();
    {
        let _net_dir_ballast = fill_file_system(active::NET_DIR);
        let _bin_dir_ballast = fill_file_system(active::BIN_DIR);
        kubectl(&format!("delete pod {} -n {NAMESPACE} --wait=false", old.pod));
        thread::sleep(Duration::from_secs(15));
    }
    let begin = Instant::now();
    world.wait_for_recovery_and(begin, || {
        agent::find_agent().is_some_and(|next| next.pod != old.pod)
    });
}

/// Damages the node's copy of its pods while pods start: first its files, then makes the directory
/// immutable.
fn damage_copy(world: &mut World) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        for name in copied_pods() {
            if !name.starts_with('.') {
                damage_file(&Path::new(COPY).join(name), &mut world.rng);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    let immutable = make_immutable(COPY.into());
    thread::sleep(Duration::from_secs(world.rng.random_range(5..15)));
    drop(immutable);
    world.wait_for_recovery(Instant::now());
}

/// Removes, cuts or overwrites a file, or makes it immutable for an instant. Errors are ignored,
/// because the agent may remove or replace the file meanwhile.
fn damage_file(path: &Path, rng: &mut StdRng) {
    match rng.random_range(0..4) {
        0 => {
            let _ = fs::remove_file(path);
        }
        1 => {
            if let Ok(file) = File::options().write(true).open(path) {
                let _ = file.set_len(20);
            }
        }
        2 => {
            let _ = fs::write(path, "garbage");
        }
        _ => drop(make_immutable(path.to_owned())),
    }
}

fn cut_watch(world: &mut World) {
    let agent = agent::agent_pods().remove(0);
    let netns = netns_of(agent["status"]["podIP"].as_str().expect("the agent runs"));
    let input = dropping_chain("input", "sport");
    let output = dropping_chain("output", "dport");
    netns.must(&["nft", &format!("table inet soak {{ {input}{output} }}")]);
    thread::sleep(Duration::from_secs(world.rng.random_range(5..15)));
    netns.must(&["nft", "delete", "table", "inet", "soak"]);
    world.wait_for_recovery(Instant::now());
}

/// A chain of nftables that drops packets from or to the API server.
fn dropping_chain(hook: &str, port: &str) -> String {
    format!(
        "chain {hook} {{ type filter hook {hook} priority 0; tcp {port} {{ 443, 6443 }} drop; }}\n"
    )
}

fn upgrade(world: &mut World) {
    let ports = format!("ignoreInboundPorts={}", world.rng.random_range(9000..9999));
    let begin = Instant::now();
    world.helm.run("upgrade", &["--reuse-values", "--set", &ports]);
    world.wait_for_recovery(begin);
}

fn rollback(world: &mut World) {
    let begin = Instant::now();
    world.helm.must(&["rollback", "linkerd-cni", "-n", NAMESPACE, "--wait", "--timeout", "90s"]);
    agent::wait_for_rollout();
    world.wait_for_recovery(begin);
}

fn rollout_restart(world: &mut World) {
    let begin = Instant::now();
    kubectl(&format!("rollout restart daemonset/linkerd-cni -n {NAMESPACE}"));
    agent::wait_for_rollout();
    world.wait_for_recovery(begin);
}

fn restart_containerd(world: &mut World) {
    running::assert_processes_survive(|| {
        {
            let _outage = outages::open(Cause::Node);
            kill_component("containerd");
            start_missing_components();
            start_cri();
        }
        world.wait_for_recovery(Instant::now());
    });
}

/// Restarts containerd until it serves pods. Containerd runs without serving pods if it gets no
/// inotify instance. All clusters of a machine share these (`fs.inotify.max_user_instances`), so a
/// later start may succeed.
fn start_cri() {
    let begin = Instant::now();
    while !has_cri() {
        assert!(begin.elapsed() < RUNTIME_BUDGET, "containerd does not serve pods; see its log");
        println!("         containerd does not serve pods; it is started again");
        thread::sleep(Duration::from_secs(2));
        kill_component("containerd");
        start_missing_components();
    }
}

/// Whether containerd serves pods, which is the task of its plugin `cri`.
fn has_cri() -> bool {
    ctr(&["plugins", "list"]).lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"cri") && words.last() == Some(&"ok")
    })
}

/// Fills the file system of a directory until the returned value is dropped.
fn fill_file_system(directory: &str) -> OnDrop<impl FnMut()> {
    let path = Path::new(directory).join(".soak-ballast");
    let mut file = File::create(&path).expect("the directory can be written");
    let ballast = OnDrop(move || {
        let _ = fs::remove_file(&path);
    });
    let result = io::copy(&mut io::repeat(1).take(FILL_LIMIT), &mut file);
    assert!(
        result.is_err(),
        "{directory} has more than {FILL_LIMIT} bytes left: run scripts/maintainers/soak"
    );
    ballast
}
