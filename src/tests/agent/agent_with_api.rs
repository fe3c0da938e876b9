//! A ready agent with an API server. Tests change what the API server responds, and stop the agent.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::Agent;
use crate::api::{Api, State, bound_token};
use crate::node::{CALICO, Node};
use crate::until::until;

pub struct Scene {
    pub api: Api,
    pub node: Node,
    pub agent: Agent,
}

impl Scene {
    /// A ready agent on a node, with its own account and the plugin's.
    pub fn start(more: &[(&str, &str)]) -> Scene {
        let api = Api::start();
        let vars = api.vars();
        Scene::start_with(api, &vars, more)
    }

    /// The same under upstream's chart, where the plugin has the agent's token, which is bound to the agent's pod.
    pub fn start_with_one_account(more: &[(&str, &str)]) -> Scene {
        Scene::start_with_token(&bound_token(), more)
    }

    /// The same with another token of the agent.
    pub fn start_with_token(token: &str, more: &[(&str, &str)]) -> Scene {
        let api = Api::start();
        api.state().tokens = vec![token.to_owned()];
        let vars = api.address_vars();
        let node = node(&api);
        node.rotate(token);
        let scene = Scene::start_on(api, node, &vars, more);
        // The agent looks for its DaemonSet once it has recorded the response to its token check.
        until("the token is checked", || scene.api.asked("GET", "/daemonsets/") > 0);
        scene
    }

    /// Starts an agent whose API server is in another state than usual.
    pub fn start_with(api: Api, vars: &[(&str, String)], more: &[(&str, &str)]) -> Scene {
        let node = node(&api);
        Scene::start_on(api, node, vars, more)
    }

    fn start_on(api: Api, node: Node, vars: &[(&str, String)], more: &[(&str, &str)]) -> Scene {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let agent = node.start_owned(&vars.iter().cloned().chain(more).collect::<Vec<_>>());
        let mut scene = Scene { api, node, agent };
        scene.agent.until_ready();
        if vars.len() > 2 {
            until("the plugin's own token", || scene.node.token() != "token-1");
        }
        scene
    }

    /// Changes the API server's responses and stops the agent. Returns the time until it ended.
    pub fn stop(&mut self, change: impl FnOnce(&mut State)) -> Duration {
        change(&mut self.api.state());
        let begin = Instant::now();
        assert_eq!(self.agent.stop(), Some(0), "{}", self.agent.log());
        begin.elapsed()
    }

    pub fn is_uninstalled(&self) -> bool {
        self.node.text("10-calico.conflist") == CALICO
            && !self.node.bin("linkerd-cni").exists()
            && !self.node.net("kubeconfig.json").exists()
    }

    /// Stops the agent by SIGSTOP while no pass runs, as a running pass would write files after SIGCONT. No pass has
    /// begun for a while then: a pass follows each change of the node's files.
    pub fn pause_between_passes(&self) {
        let passes = || {
            let metrics = self.agent.get("/metrics").1;
            let line =
                metrics.lines().find(|line| line.starts_with("linkerd_cni_agent_reconcile_total"));
            line.map(str::to_owned)
        };
        let mut last = None;
        until("no pass begins", || {
            let before = last.take();
            last = passes();
            thread::sleep(Duration::from_millis(300));
            last.is_some() && last == before
        });
        self.agent.signal(Signal::SIGSTOP);
    }

    pub fn is_installed(&self) -> bool {
        self.node.chained("10-calico.conflist")
            && self.node.bin("linkerd-cni").exists()
            && self.node.net("kubeconfig.json").exists()
    }

    pub fn assert_uninstalled(&self, what: &str) {
        assert!(self.is_uninstalled(), "{what}: {}", self.agent.log());
        assert_eq!(self.agent.log().matches("uninstalling").count(), 1, "{what}");
    }

    /// `why` is the reason that the agent logs.
    pub fn assert_left_in_place(&self, what: &str, why: &str) {
        let log = self.agent.log();
        assert!(self.is_installed(), "{what}: {log}");
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("is left in place for the next agent"))
            .collect();
        assert!(lines.len() == 1 && lines[0].contains(why), "{what}: {log}");
    }
}

/// A node with one network config, whose API server is `api`.
pub fn node(api: &Api) -> Node {
    let node = Node::new();
    node.use_api(api);
    node.write("10-calico.conflist", CALICO);
    node
}

/// A ready agent on such a node.
pub fn started() -> (Api, Node, Agent) {
    let api = Api::start();
    let (node, agent) = started_with(&api);
    (api, node, agent)
}

/// The same with an API server in another state than usual.
pub fn started_with(api: &Api) -> (Node, Agent) {
    let node = node(api);
    let agent = node.start_owned_ready(&api.vars());
    (node, agent)
}

/// Runs all cases at the same time, as most of them wait.
pub fn all<T: Send>(cases: Vec<T>, test: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| test(case));
        }
    });
}
