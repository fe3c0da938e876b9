//! Gathers the evidence for and against an uninstall from the API server. Decides nothing.

use std::time::{Duration, Instant, SystemTime};

use crate::agent::api::token::History;
use crate::agent::api::{self, USER_AGENT};
use crate::agent::settings::Settings;
use crate::kube::claims::Claims;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::scheduling::{self, DaemonSet, Node, daemonset_path};
use crate::kube::types::{Namespace, Pod};
use crate::kube::{Client, Deadlines, Error, NOT_FOUND, Retry, UNAUTHORIZED};

const NAMESPACE: &str = "the agent's namespace";

/// All that an agent knows when it has to decide whether to uninstall.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub daemonset: String,
    /// The agent found no kubeconfig at its start, so no earlier agent can have installed the plugin.
    pub found_empty_node: bool,
    /// What the API server's responses had shown when the agent received the signal.
    pub before: History,
    /// When the agent received the signal.
    pub begin: Instant,
    /// Until when the agent asks the API server.
    pub end: Instant,
    /// An agent that started after this one runs on the node.
    pub newer_agent_runs: bool,
    /// Results of the rounds of requests since `begin`, and when each ended.
    pub rounds: Vec<(Instant, Round)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// The agent's DaemonSet or namespace is being deleted.
    BeingDeleted(String),
    /// HTTP 404 with Kubernetes' Status.
    DaemonSetGone(AgentPod),
    /// The DaemonSet is not being deleted, and nothing shows that this node is out of its scope.
    InScope,
    /// The DaemonSet exists, and this node is out of its scope for this reason.
    OutOfScope(String, AgentPod),
    /// HTTP 401 with Kubernetes' Status for the agent's `own` token, and for the plugin's, which may be
    /// the same. The error says why the plugin's token is not known to be rejected.
    Rejected { own: TokenFacts, plugin: Result<TokenFacts, String> },
    /// Any other response, or a time-out.
    Unclear(String),
    /// Also if no API server or namespace is configured, or the credential cannot be read.
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentPod {
    Deleted,
    /// It is not being deleted, so the kubelet only restarts the agent's container.
    Stays,
    /// The agent has no right to read it, or does not know its name.
    Unreadable(String),
    /// The next round may show it.
    Unclear(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenFacts {
    pub has_expired: bool,
    /// The token is bound to no pod, so it is valid as long as its ServiceAccount exists.
    pub outlives_pod: bool,
}

impl TokenFacts {
    fn read(token: &str) -> TokenFacts {
        Claims::read(token).map_or(TokenFacts::default(), |claims| TokenFacts {
            has_expired: claims.has_expired(SystemTime::now()),
            outlives_pod: claims.pod_uid().is_none(),
        })
    }
}

/// Sends the requests of one round. Uses new connections, so that a load balancer may choose
/// another API server in each round. `timeout` bounds each phase of a request.
pub fn ask(settings: &Settings, timeout: Duration) -> Round {
    let Some(source) = api::source(settings) else {
        return Round::Unreachable("no API server is configured".into());
    };
    let Some(namespace) = api::namespace(settings) else {
        return Round::Unreachable(api::NO_NAMESPACE.into());
    };
    let mut own = Connection::new(source, USER_AGENT, Deadlines::each(timeout));
    let client = match own.client() {
        Ok(client) => client,
        Err(error) => return Round::Unreachable(error.to_string()),
    };
    let name = &settings.daemonset;
    match client.get::<DaemonSet>(&daemonset_path(&namespace, name)) {
        Ok(set) if set.metadata.name != *name => Round::Unclear(another_object("DaemonSet", name)),
        Ok(set) if set.metadata.deletion_timestamp.is_some() => {
            Round::BeingDeleted(format!("DaemonSet {namespace}/{name}"))
        }
        Ok(set) => existing(settings, &client, &namespace, &set),
        Err(error) if error.is_status(404, NOT_FOUND) => {
            Round::DaemonSetGone(agent_pod(settings, &client, &namespace))
        }
        Err(error) if error.is_status(401, UNAUTHORIZED) => {
            rejected(settings, own.token().unwrap_or_default(), &namespace, timeout)
        }
        Err(error) if error.is_response() || error.is_timeout() || error.is_unreadable() => {
            Round::Unclear(error.to_string())
        }
        Err(error) => Round::Unreachable(error.to_string()),
    }
}

/// Completes the round for a DaemonSet that is not being deleted.
fn existing(settings: &Settings, client: &Client, namespace: &str, set: &DaemonSet) -> Round {
    // Kubernetes may delete this pod before the DaemonSet, as it deletes a Namespace in any order.
    match is_being_deleted(client, namespace) {
        Ok(true) => return Round::BeingDeleted(NAMESPACE.into()),
        Err(error) if error.code() == Some(404) || is_temporary(&error) => {
            return Round::Unclear(error.to_string());
        }
        Ok(false) | Err(_) => {}
    }
    let Some(name) = &settings.node_name else {
        return Round::InScope;
    };
    match client.get::<Node>(&format!("/api/v1/nodes/{name}")) {
        Ok(node) if node.metadata.name != *name => Round::Unclear(another_object("Node", name)),
        Ok(node) => match scheduling::exclusion(&set.spec.template.spec, &node) {
            Some(why) => Round::OutOfScope(
                format!("node {name} is no longer in the DaemonSet's scope: {why}"),
                agent_pod(settings, client, namespace),
            ),
            None => Round::InScope,
        },
        Err(error) if is_temporary(&error) => Round::Unclear(error.to_string()),
        // Upstream's chart does not let the agent read Nodes.
        Err(_) => Round::InScope,
    }
}

fn agent_pod(settings: &Settings, client: &Client, namespace: &str) -> AgentPod {
    let Some(name) = &settings.pod_name else {
        return AgentPod::Unreadable("the name of the agent's pod is not set".into());
    };
    match client.get::<Pod>(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
        Ok(pod) if pod.metadata.name != *name => AgentPod::Unclear(another_object("Pod", name)),
        Ok(pod) if pod.metadata.deletion_timestamp.is_some() => AgentPod::Deleted,
        Ok(_) => AgentPod::Stays,
        Err(error) if error.is_status(404, NOT_FOUND) => AgentPod::Deleted,
        Err(error) if error.code() == Some(404) || is_temporary(&error) => {
            AgentPod::Unclear(error.to_string())
        }
        Err(error) => AgentPod::Unreadable(format!("the agent cannot read its pod: {error}")),
    }
}

/// Completes the round after the agent's `own` token was rejected: asks with the plugin's token.
fn rejected(settings: &Settings, own: &str, namespace: &str, timeout: Duration) -> Round {
    let kubeconfig = AccessSource::Kubeconfig(settings.node.kubeconfig());
    let mut connection = Connection::new(kubeconfig, USER_AGENT, Deadlines::each(timeout));
    let client = connection.client();
    let token = connection.token();
    let facts = TokenFacts::read(token.unwrap_or(own));
    let plugin = match (client, token) {
        (Ok(client), Some(token)) if token != own => match is_being_deleted(&client, namespace) {
            Ok(true) => return Round::BeingDeleted(NAMESPACE.into()),
            Err(error) if error.is_status(401, UNAUTHORIZED) => Ok(facts),
            // A busy or failing API server may not have checked the token.
            Err(error) if is_temporary(&error) || error.code().is_none_or(|code| code == 401) => {
                Err(error.to_string())
            }
            Ok(false) | Err(_) => Err("accepted the plugin's token".into()),
        },
        (Ok(_), Some(_)) => Ok(facts),
        _ if settings.plugin_account.is_none() => Ok(facts),
        (Err(error), _) => Err(format!("the plugin's token cannot be read: {error}")),
        (Ok(_), None) => Err("the kubeconfig has no token".into()),
    };
    Round::Rejected { own: TokenFacts::read(own), plugin }
}

fn is_being_deleted(client: &Client, namespace: &str) -> Result<bool, Error> {
    let found = client.get::<Namespace>(&format!("/api/v1/namespaces/{namespace}"))?.metadata;
    Ok(found.name == namespace && found.deletion_timestamp.is_some())
}

fn another_object(kind: &str, name: &str) -> String {
    format!("unexpected response: another object instead of {kind} {name}")
}

/// Whether the next round may get a different response.
fn is_temporary(error: &Error) -> bool {
    error.retry() != Retry::Never
}
