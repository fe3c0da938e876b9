//! What is done to the node and to the release, in random order.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::agent::{self, KUBECONFIG};
use crate::credential;
use crate::disk::Ballast;
use crate::helm::NAMESPACE;
use crate::ledger::Invariant;
use crate::node::{kill_component, restart_api_server};
use crate::outages::{Cause, Outages};
use crate::pods::kubectl;
use crate::reader;
use crate::runtime;
use crate::world::{Stopped, World, component, replace};
use rand::RngExt as _;

/// Kinds of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    KillAgent,
    DeletePod,
    KillApiServer,
    KillBoth,
    StallApiServer,
    StallEtcd,
    RewriteConflist,
    RewriteAndKill,
    DeleteConflist,
    DeleteKubeconfig,
    RevokeToken,
    ExpireToken,
    FutureToken,
    FillDisk,
    Upgrade,
    Rollback,
    RolloutRestart,
    RestartRuntime,
}

/// Bound of the wait for pods that start while the API server is down.
const WITHOUT_API: Duration = Duration::from_secs(90);

impl Action {
    pub const ALL: [Action; 18] = [
        Action::KillAgent,
        Action::DeletePod,
        Action::KillApiServer,
        Action::KillBoth,
        Action::StallApiServer,
        Action::StallEtcd,
        Action::RewriteConflist,
        Action::RewriteAndKill,
        Action::DeleteConflist,
        Action::DeleteKubeconfig,
        Action::RevokeToken,
        Action::ExpireToken,
        Action::FutureToken,
        Action::FillDisk,
        Action::Upgrade,
        Action::Rollback,
        Action::RolloutRestart,
        Action::RestartRuntime,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Action::KillAgent => "agent killed (SIGKILL)",
            Action::DeletePod => "agent pod deleted",
            Action::KillApiServer => "API server killed, started again",
            Action::KillBoth => "API server and agent killed",
            Action::StallApiServer => "API server stalled (SIGSTOP)",
            Action::StallEtcd => "etcd stalled (SIGSTOP)",
            Action::RewriteConflist => "conflist rewritten by the primary CNI",
            Action::RewriteAndKill => "agent killed, conflist rewritten",
            Action::DeleteConflist => "conflist deleted, written again",
            Action::DeleteKubeconfig => "kubeconfig deleted",
            Action::RevokeToken => "token revoked (ServiceAccount recreated)",
            Action::ExpireToken => "token expired an hour ago, agent killed",
            Action::FutureToken => "token valid only in an hour, agent killed",
            Action::FillDisk => "CNI directories full, agent replaced",
            Action::Upgrade => "helm upgrade",
            Action::Rollback => "helm rollback",
            Action::RolloutRestart => "kubectl rollout restart",
            Action::RestartRuntime => "containerd killed, started again",
        }
    }

    /// Whether the agent's process is the same afterwards.
    pub fn keeps_agent(self) -> bool {
        matches!(
            self,
            Action::KillApiServer
                | Action::StallApiServer
                | Action::StallEtcd
                | Action::RewriteConflist
                | Action::DeleteConflist
                | Action::DeleteKubeconfig
                | Action::RevokeToken
                | Action::RestartRuntime
        )
    }

    /// Performs the action and waits for the recovery.
    pub fn perform(self, world: &mut World) {
        world.ledger.begin(self.name());
        match self {
            Action::KillAgent => kill_agent(world),
            Action::DeletePod => delete_pod(world),
            Action::KillApiServer => kill_api_server(world, false),
            Action::KillBoth => kill_api_server(world, true),
            Action::StallApiServer => stall(world, "kube-apiserver"),
            Action::StallEtcd => stall(world, "etcd"),
            Action::RewriteConflist => rewrite_conflist(world, false),
            Action::RewriteAndKill => rewrite_conflist(world, true),
            Action::DeleteConflist => delete_conflist(world),
            Action::DeleteKubeconfig => delete_kubeconfig(world),
            Action::RevokeToken => credential::revoke(world),
            Action::ExpireToken => credential::replace_by(world, credential::EXPIRED),
            Action::FutureToken => credential::replace_by(world, credential::NOT_YET_VALID),
            Action::FillDisk => fill_disk(world),
            Action::Upgrade => upgrade(world),
            Action::Rollback => rollback(world),
            Action::RolloutRestart => rollout_restart(world),
            Action::RestartRuntime => runtime::restart(world),
        }
    }
}

fn kill_agent(world: &World) {
    let old = agent::agent();
    let _ = kill(old.pid, Signal::SIGKILL);
    let begin = Instant::now();
    world.recovered(begin, || {
        agent::find_agent().is_some_and(|next| next.pid != old.pid && next.ready)
    });
}

fn delete_pod(world: &mut World) {
    let old = agent::agent();
    let mut delete = vec!["delete", "pod", &old.pod, "-n", NAMESPACE, "--wait=false"];
    if world.rng.random_bool(0.5) {
        delete.extend(["--force", "--grace-period=0"]);
    }
    kubectl(&delete);
    let begin = Instant::now();
    world.recovered(begin, || agent::find_agent().is_some_and(|next| next.pod != old.pod));
}

/// Starts a killed API server again when it is dropped, also on a panic.
struct RestartApiServer<'a>(&'a Outages);

impl Drop for RestartApiServer<'_> {
    fn drop(&mut self) {
        // Kubelet is restarted, too.
        let _node = self.0.open(Cause::Node);
        restart_api_server();
    }
}

/// Kills the API server, and the agent too if it `kills_agent`.
fn kill_api_server(world: &World, kills_agent: bool) {
    let agent = agent::agent();
    let seen = &world.load;
    let counts = || {
        [&seen.unmeshed_without_api, &seen.meshed_without_api]
            .map(|one| one.load(Ordering::Relaxed))
    };
    let before = counts();
    {
        let _down = world.outages.open(Cause::ApiServer);
        let _restart = RestartApiServer(&world.outages);
        kill_component("kube-apiserver");
        if kills_agent {
            let _ = kill(agent.pid, Signal::SIGKILL);
        }
        let begin = Instant::now();
        while !counts().iter().zip(before).all(|(now, before)| *now > before) {
            if begin.elapsed() > WITHOUT_API {
                let started = format!("{:?}, before {before:?}", counts());
                let seen = format!("unmeshed and meshed pods started without it: {started}");
                world.ledger.violated(Invariant::StartsWithoutApi, seen);
                break;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
    world.recovered(Instant::now(), || true);
}

/// Kubelet waits for the API server, too, before it starts a pod, so no bound holds meanwhile.
fn stall(world: &mut World, name: &str) {
    let pid = component(name);
    {
        let _api = world.outages.open(Cause::ApiServer);
        let _node = world.outages.open(Cause::Node);
        let _stopped = Stopped::stop(pid).expect("the component runs");
        thread::sleep(Duration::from_secs(world.rng.random_range(5..20)));
    }
    world.recovered(Instant::now(), || true);
}

/// The primary CNI replaces its file. If it `kills_agent`, pods start without the plugin entry until kubelet has
/// restarted the agent.
fn rewrite_conflist(world: &World, kills_agent: bool) {
    let agent = agent::agent();
    let path = reader::active().expect("there is a conflist");
    let outage = world.outages.open(Cause::Unchained);
    if kills_agent {
        let _ = kill(agent.pid, Signal::SIGKILL);
    }
    let begin = Instant::now();
    replace(&path, &world.bare, 0o644);
    world.recovered(begin, || true);
    drop(outage);
}

fn delete_conflist(world: &mut World) {
    let path = reader::active().expect("there is a conflist");
    let missing = world.outages.open(Cause::NoConflist);
    let unchained = world.outages.open(Cause::Unchained);
    fs::remove_file(&path).expect("the conflist can be deleted");
    thread::sleep(Duration::from_millis(world.rng.random_range(500..3000)));
    let begin = Instant::now();
    replace(&path, &world.bare, 0o644);
    drop(missing);
    world.recovered(begin, || true);
    drop(unchained);
}

fn delete_kubeconfig(world: &World) {
    let outage = world.outages.open(Cause::NoKubeconfig);
    let credential = world.outages.open(Cause::Credential);
    let begin = Instant::now();
    fs::remove_file(KUBECONFIG).expect("there is a kubeconfig");
    world.recovered(begin, || Path::new(KUBECONFIG).exists());
    drop((outage, credential));
}

/// Fills the file systems of the CNI directories, replaces the agent meanwhile, and frees them.
fn fill_disk(world: &World) {
    let old = agent::agent();
    {
        let _ballast = [reader::NET_DIR, reader::BIN_DIR].map(Ballast::fill);
        kubectl(&["delete", "pod", &old.pod, "-n", NAMESPACE, "--wait=false"]);
        thread::sleep(Duration::from_secs(15));
    }
    let begin = Instant::now();
    world.recovered(begin, || agent::find_agent().is_some_and(|next| next.pod != old.pod));
}

fn upgrade(world: &mut World) {
    let ports = format!("ignoreInboundPorts={}", world.rng.random_range(9000..9999));
    let begin = Instant::now();
    world.helm.run("upgrade", &["--reuse-values", "--set", &ports]);
    world.recovered(begin, || true);
}

fn rollback(world: &World) {
    let begin = Instant::now();
    world.helm.must(&["rollback", "linkerd-cni", "-n", NAMESPACE, "--wait", "--timeout", "90s"]);
    agent::rolled_out();
    world.recovered(begin, || true);
}

fn rollout_restart(world: &World) {
    let begin = Instant::now();
    kubectl(&["rollout", "restart", "daemonset/linkerd-cni", "-n", NAMESPACE]);
    agent::rolled_out();
    world.recovered(begin, || true);
}
