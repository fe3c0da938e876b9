//! Runs a ready agent with an API server. Tests change the responses of the API server, and stop
//! the agent.

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
    /// Starts an agent, and waits until it is ready. Agent and plugin have separate
    /// ServiceAccounts.
    pub fn start(more: &[(&str, &str)]) -> Scene {
        Scene::start_with(Api::start(), more)
    }

    /// Starts an agent with this API server, see [`Scene::start`].
    pub fn start_with(api: Api, more: &[(&str, &str)]) -> Scene {
        let node = Node::with_api(&api);
        let scene = Scene::start_on(api, node, more);
        until("the plugin's own token", || scene.node.token() != "token-1");
        scene
    }

    /// Starts an agent as upstream's chart does: the plugin uses the agent's token. Waits until the
    /// agent is ready.
    pub fn start_with_token(token: &str, more: &[(&str, &str)]) -> Scene {
        Scene::start_with_token_after(token, more, |_| {})
    }

    /// Starts an agent after `prepare` has changed the state of the API server, see
    /// [`Scene::start_with_token`].
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

    /// Starts an agent, and sends SIGTERM. The API server responds with HTTP 403, so the agent
    /// keeps asking whether it should uninstall.
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

    /// Makes the agent check the token again, by removing the kubeconfig. Waits until it has.
    pub fn until_checked(&self) {
        let checks = || self.api.asked("GET", "/namespaces/linkerd-cni?");
        let before = checks();
        let kubeconfig = self.node.net("kubeconfig.json");
        until("the kubeconfig", || std::fs::remove_file(&kubeconfig).is_ok());
        until("a check", || checks() > before);
    }

    /// Changes the API server's responses, deletes the agent's pod and stops the agent. Returns the
    /// time that the agent took to exit.
    pub fn stop(&mut self, change: impl FnOnce(&mut State)) -> Duration {
        change(&mut self.api.state());
        delete_pod(&self.api);
        let begin = Instant::now();
        assert_eq!(self.agent.stop(), Some(0), "{}", self.agent.log());
        begin.elapsed()
    }

    /// Stops the agent with SIGSTOP while no reconcile pass runs: a pass that is interrupted would
    /// write files after SIGCONT. Each change of the node's files causes a pass, so this waits
    /// until no pass has started for a while.
    pub fn pause_between_passes(&self) {
        let mut last = 0.0;
        until("no pass begins", || {
            let before = last;
            last = self.agent.metric("linkerd_cni_agent_reconcile_total");
            thread::sleep(Duration::from_millis(300));
            last == before
        });
        self.agent.signal(Signal::SIGSTOP);
        // Wait for the stop to take effect. If a file changed before that, the agent's poll would
        // report the change before SIGTERM when SIGCONT resumes it.
        until("the agent is stopped", || self.agent.is_stopped());
    }

    pub fn assert_uninstalled(&self, what: &str) {
        assert!(self.node.is_uninstalled(), "{what}: {}", self.agent.log());
        assert_eq!(self.agent.log().matches("uninstalling").count(), 1, "{what}");
    }

    /// Asserts that the agent did not uninstall, and logged the reason `why`.
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

/// Number of cases that [`in_parallel`] runs at a time.
const CASES_AT_A_TIME: usize = 3;

/// Runs `test` for all cases, several at a time. The cases spend most of their time waiting.
pub fn in_parallel<T>(cases: impl IntoIterator<Item = T, IntoIter: Send>, test: impl Fn(T) + Sync) {
    in_parallel_of(CASES_AT_A_TIME, cases, test);
}

/// Runs `test` for all cases, `at_a_time` at a time. Each agent takes one of the 128 inotify
/// instances that Linux gives a user by default.
pub fn in_parallel_of<T>(
    at_a_time: usize,
    cases: impl IntoIterator<Item = T, IntoIter: Send>,
    test: impl Fn(T) + Sync,
) {
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(case) = next() {
                    test(case);
                }
            });
        }
    });
}
