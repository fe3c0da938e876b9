//! Actions that disturb the node and the release, in random order.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use testkit::OnDrop;
use testkit::cluster::active;
use testkit::cluster::agent::{self, KUBECONFIG, Paused};
use testkit::cluster::containers::ctr;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::kubectl::{get, kubectl};
use testkit::cluster::node::{
    COPY, copied_pods, kill_component, netns_of, pid_of, replace, restart_api_server,
    start_missing_components,
};

use crate::ledger::{self, Invariant};
use crate::load::started_without_api;
use crate::outages::{self, Cause};
use crate::world::{World, make_immutable};
use crate::{credential, running};

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

pub const ACTIONS: [Action; 20] = [
    action("agent killed (SIGKILL)", false, kill_agent),
    action("agent pod deleted", false, delete_pod),
    action("API server killed, started again", true, |world| kill_api_server(world, false)),
    action("API server and agent killed", false, |world| kill_api_server(world, true)),
    action("API server stalled (SIGSTOP)", true, |world| stall(world, "kube-apiserver")),
    action("etcd stalled (SIGSTOP)", true, |world| stall(world, "etcd")),
    action("conflist rewritten by the primary CNI", true, |world| rewrite_conflist(world, false)),
    action("agent killed, conflist rewritten", false, |world| rewrite_conflist(world, true)),
    action("conflist deleted, written again", true, delete_conflist),
    action("kubeconfig deleted", true, delete_kubeconfig),
    action("token revoked (ServiceAccount recreated)", true, credential::revoke),
    action("token expired an hour ago, agent killed", false, |world| {
        credential::replace_by(world, credential::EXPIRED);
    }),
    action("token valid only in an hour, agent killed", false, |world| {
        credential::replace_by(world, credential::NOT_YET_VALID);
    }),
    action("CNI directories full, agent replaced", false, fill_disk),
    action("copy of the node's pods damaged", true, damage_copy),
    action("agent's watch of pods cut", true, cut_watch),
    action("helm upgrade", false, upgrade),
    action("helm rollback", false, rollback),
    action("kubectl rollout restart", false, rollout_restart),
    action("containerd killed, started again", true, restart_containerd),
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
        ledger::begin(self.name);
        (self.perform)(world);
    }
}

fn kill_agent(world: &mut World) {
    let old = agent::agent();
    let _ = kill(old.pid, Signal::SIGKILL);
    let begin = Instant::now();
    world.recovered(begin, || {
        agent::find_agent().is_some_and(|next| next.pid != old.pid && next.ready)
    });
}

fn delete_pod(world: &mut World) {
    let old = agent::agent();
    let force = if world.rng.random_bool(0.5) { "--force --grace-period=0" } else { "" };
    kubectl(&format!("delete pod {} -n {NAMESPACE} --wait=false {force}", old.pod));
    let begin = Instant::now();
    world.recovered(begin, || agent::find_agent().is_some_and(|next| next.pod != old.pod));
}

fn kill_api_server(world: &World, kills_agent: bool) {
    let agent = agent::agent();
    let before = started_without_api();
    {
        let _down = outages::open(Cause::ApiServer);
        let _restart = OnDrop(|| {
            // The restart includes kubelet, which starts no pods meanwhile.
            let _node = outages::open(Cause::Node);
            restart_api_server();
        });
        kill_component("kube-apiserver");
        if kills_agent {
            let _ = kill(agent.pid, Signal::SIGKILL);
        }
        let begin = Instant::now();
        // The API server stays down until a meshed and an unmeshed pod have started without it.
        while !started_without_api().iter().zip(before).all(|(now, before)| *now > before) {
            if begin.elapsed() > WITHOUT_API_BUDGET {
                let started = format!("{:?}, before {before:?}", started_without_api());
                let seen = format!("unmeshed and meshed pods started without it: {started}");
                ledger::violated(Invariant::StartsWithoutApi, seen);
                break;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
    world.recovered(Instant::now(), || true);
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
    world.recovered(Instant::now(), || true);
}

/// Writes the conflist without the plugin entry, as the primary CNI does. With `kills_agent`, pods
/// start without the entry until kubelet has started the agent again.
fn rewrite_conflist(world: &World, kills_agent: bool) {
    let agent = agent::agent();
    let path = active::path("").expect("there is a conflist");
    let outage = outages::open(Cause::Unchained);
    if kills_agent {
        let _ = kill(agent.pid, Signal::SIGKILL);
    }
    let begin = Instant::now();
    replace(&path, "soak", &world.original, 0o644);
    world.recovered(begin, || true);
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
    world.recovered(begin, || true);
    drop(unchained);
}

fn delete_kubeconfig(world: &mut World) {
    let outage = outages::open(Cause::NoKubeconfig);
    let credential = outages::open(Cause::Credential);
    let begin = Instant::now();
    fs::remove_file(KUBECONFIG).expect("there is a kubeconfig");
    world.recovered(begin, || Path::new(KUBECONFIG).exists());
    drop((outage, credential));
}

fn fill_disk(world: &mut World) {
    let old = agent::agent();
    {
        let _ballast = [active::NET_DIR, active::BIN_DIR].map(fill);
        kubectl(&format!("delete pod {} -n {NAMESPACE} --wait=false", old.pod));
        thread::sleep(Duration::from_secs(15));
    }
    let begin = Instant::now();
    world.recovered(begin, || agent::find_agent().is_some_and(|next| next.pod != old.pod));
}

/// Damages files of the node's copy of its pods while pods start: removes them, cuts them,
/// overwrites them and makes them immutable. At last makes the directory immutable.
fn damage_copy(world: &mut World) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        for name in copied_pods().into_iter().filter(|name| !name.starts_with('.')) {
            let path = Path::new(COPY).join(name);
            // Errors are ignored, because the agent may remove or replace the file meanwhile.
            match world.rng.random_range(0..4) {
                0 => drop(fs::remove_file(path)),
                1 => drop(File::options().write(true).open(path).map(|file| file.set_len(20))),
                2 => drop(fs::write(path, "garbage")),
                _ => drop(make_immutable(path)),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    let immutable = make_immutable(COPY.into());
    thread::sleep(Duration::from_secs(world.rng.random_range(5..15)));
    drop(immutable);
    world.recovered(Instant::now(), || true);
}

fn cut_watch(world: &mut World) {
    let agent = get(&format!("pod {} -n {NAMESPACE}", agent::agent().pod));
    let netns = netns_of(agent["status"]["podIP"].as_str().expect("the agent runs"));
    let (input, output) = (dropping_chain("input", "sport"), dropping_chain("output", "dport"));
    netns.must(&["nft", &format!("table inet soak {{ {input}{output} }}")]);
    thread::sleep(Duration::from_secs(world.rng.random_range(5..15)));
    netns.must(&["nft", "delete", "table", "inet", "soak"]);
    world.recovered(Instant::now(), || true);
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
    world.recovered(begin, || true);
}

fn rollback(world: &mut World) {
    let begin = Instant::now();
    world.helm.must(&["rollback", "linkerd-cni", "-n", NAMESPACE, "--wait", "--timeout", "90s"]);
    agent::wait_for_rollout();
    world.recovered(begin, || true);
}

fn rollout_restart(world: &mut World) {
    let begin = Instant::now();
    kubectl(&format!("rollout restart daemonset/linkerd-cni -n {NAMESPACE}"));
    agent::wait_for_rollout();
    world.recovered(begin, || true);
}

fn restart_containerd(world: &mut World) {
    running::survive(|| {
        {
            let _down = outages::open(Cause::Node);
            kill_component("containerd");
            start_missing_components();
            start_cri();
        }
        world.recovered(Instant::now(), || true);
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

fn fill(directory: &str) -> OnDrop<impl FnMut()> {
    let path = Path::new(directory).join(".soak-ballast");
    let mut file = File::create(&path).expect("the directory can be written");
    let ballast = OnDrop(move || {
        let _ = fs::remove_file(&path);
    });
    let filled = io::copy(&mut io::repeat(1).take(FILL_LIMIT), &mut file);
    assert!(
        filled.is_err(),
        "{directory} has more than {FILL_LIMIT} bytes left: run scripts/maintainers/soak"
    );
    ballast
}
