//! A ready agent with an API server. Tests change what the API server responds, and stop the agent.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState, State, delete_pod};
use crate::node::Node;
use crate::until::until;

pub struct Scene {
    pub api: Api,
    pub node: Node,
    pub agent: Agent,
}

impl Scene {
    /// A ready agent on a node, with its own account and the plugin's.
    pub fn start(more: &[(&str, &str)]) -> Scene {
        Scene::start_with(Api::start(), more)
    }

    /// The same with an API server in another state than usual.
    pub fn start_with(api: Api, more: &[(&str, &str)]) -> Scene {
        let node = Node::with_api(&api);
        let scene = Scene::start_on(api, node, more);
        until("the plugin's own token", || scene.node.token() != "token-1");
        scene
    }

    /// Starts a ready agent under upstream's chart, where the plugin has the agent's token.
    pub fn start_with_token(token: &str, more: &[(&str, &str)]) -> Scene {
        Scene::start_with_token_after(token, more, |_| {})
    }

    /// The same with an API server in another state than usual.
    pub fn start_with_token_after(
        token: &str,
        more: &[(&str, &str)],
        prepare: impl FnOnce(&mut State),
    ) -> Scene {
        let api = Api::start();
        api.state().tokens = vec![token.to_owned()];
        prepare(&mut api.state());
        let mut node = Node::with_api(&api);
        node.vars.retain(|(name, _)| *name != "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT");
        node.rotate(token);
        let scene = Scene::start_on(api, node, more);
        until("the token is checked", || scene.api.asked("GET", "/namespaces/linkerd-cni?") > 0);
        scene
    }

    pub fn start_on(api: Api, node: Node, more: &[(&str, &str)]) -> Scene {
        let agent = node.start_ready_with(more);
        let scene = Scene { api, node, agent };
        let is_denied = scene.api.state().pods_status != 200;
        until("the watch", || is_denied || !scene.api.watches().is_empty());
        scene
    }

    pub fn with_socket() -> Scene {
        let scene = Scene::start(&[]);
        until("the socket", || scene.node.net(".linkerd-cni.sock").exists());
        scene
    }

    /// An agent that received SIGTERM, and that asks the API server again as it gets HTTP 403.
    pub fn asking() -> Scene {
        Scene::asking_for(&[])
    }

    pub fn asking_for(more: &[(&str, &str)]) -> Scene {
        let scene = Scene::start(more);
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        delete_pod(&scene.api);
        scene.agent.signal(Signal::SIGTERM);
        until("asked once", || scene.agent.log().contains("asking again"));
        scene
    }

    /// Waits until the agent has checked the token again, which it does once it has restored the
    /// kubeconfig.
    pub fn until_checked(&self) {
        let checks = || self.api.asked("GET", "/namespaces/linkerd-cni?");
        let before = checks();
        let kubeconfig = self.node.net("kubeconfig.json");
        until("the kubeconfig", || std::fs::remove_file(&kubeconfig).is_ok());
        until("a check", || checks() > before);
    }

    /// Changes the API server's responses, deletes the agent's pod and stops the agent. Returns the
    /// time until it ended.
    pub fn stop(&mut self, change: impl FnOnce(&mut State)) -> Duration {
        change(&mut self.api.state());
        delete_pod(&self.api);
        let begin = Instant::now();
        assert_eq!(self.agent.stop(), Some(0), "{}", self.agent.log());
        begin.elapsed()
    }

    /// Stops the agent by SIGSTOP while no pass runs, as a running pass would write files after
    /// SIGCONT. The agent is stopped once no pass has begun for a while, because each change of the
    /// node's files causes a pass.
    pub fn pause_between_passes(&self) {
        let mut last = 0.0;
        until("no pass begins", || {
            let before = last;
            last = self.agent.metric("linkerd_cni_agent_reconcile_total");
            thread::sleep(Duration::from_millis(300));
            last == before
        });
        self.agent.signal(Signal::SIGSTOP);
        // If a file changed before the stop, the poll that SIGCONT continues would report the
        // change before SIGTERM.
        until("the agent is stopped", || self.agent.is_stopped());
    }

    pub fn assert_uninstalled(&self, what: &str) {
        assert!(self.node.is_uninstalled(), "{what}: {}", self.agent.log());
        assert_eq!(self.agent.log().matches("uninstalling").count(), 1, "{what}");
    }

    /// `why` is the reason that the agent logs.
    pub fn assert_left_in_place(&self, what: &str, why: &str) {
        let log = self.agent.log();
        assert!(self.node.is_installed(), "{what}: {log}");
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("is left in place for the next agent"))
            .collect();
        assert!(lines.len() == 1 && lines[0].contains(why), "{what}: {log}");
    }
}

/// Cases that [`in_parallel`] runs at a time.
const AT_A_TIME: usize = 3;

/// Runs the cases side by side, as most of them wait.
pub fn in_parallel<T>(cases: impl IntoIterator<Item = T, IntoIter: Send>, test: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(case) = next() {
                    test(case);
                }
            });
        }
    });
}
