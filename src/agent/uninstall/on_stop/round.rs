//! Sends one round of requests that show whether this agent's release is uninstalled.

use std::time::{Duration, SystemTime};

use super::decision::Finding;
use super::scope;
use crate::agent::api::{self, USER_AGENT, claims::Claims};
use crate::agent::settings::Settings;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::retry::Retry;
use crate::kube::scheduling::{DaemonSet, Node};
use crate::kube::types::{Namespace, Pod};
use crate::kube::{Client, Deadlines, Error};

/// `reason` of a Status object for a missing object. A 404 without it comes from a proxy.
const NOT_FOUND: &str = "NotFound";
/// `reason` of a Status object for a rejected token. A 401 without it comes from a proxy.
const UNAUTHORIZED: &str = "Unauthorized";

/// Sends the requests of one round. Uses new connections, so that a load balancer may choose
/// another API server in each round. `timeout` bounds each phase of a request.
pub fn run(settings: &Settings, timeout: Duration) -> Finding {
    let Some(source) = api::source(settings) else {
        return Finding::Unreachable("no API server is configured".into());
    };
    let Some(namespace) = api::namespace(settings) else {
        let why = "the agent's namespace is unknown: set LINKERD_CNI_NAMESPACE";
        return Finding::Unreachable(why.into());
    };
    let mut own = Connection::new(source, USER_AGENT, Deadlines::each(timeout));
    let client = match own.client() {
        Ok(client) => client,
        Err(error) => return Finding::Unreachable(error.to_string()),
    };
    let name = &settings.daemonset;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    match client.get::<DaemonSet>(&path) {
        Ok(set) if set.metadata.name != *name => another_object("DaemonSet", name),
        Ok(set) if set.metadata.deletion_timestamp.is_some() => {
            Finding::Uninstalled(format!("DaemonSet {namespace}/{name} is being deleted"))
        }
        Ok(set) => existing(settings, &client, &namespace, &set),
        Err(error) if error.is_status(404, NOT_FOUND) => {
            Finding::Uninstalled(format!("DaemonSet {namespace}/{name} does not exist"))
        }
        Err(error) if error.is_status(401, UNAUTHORIZED) => {
            rejected(settings, own.token(), &namespace, timeout)
        }
        Err(error) if error.is_response() || error.is_timeout() || error.is_unreadable() => {
            Finding::Unclear(error.to_string())
        }
        Err(error) => Finding::Unreachable(error.to_string()),
    }
}

/// Returns the finding for a DaemonSet that is not being deleted. The release is still uninstalled
/// from this node if the Namespace is being deleted or the node is out of the DaemonSet's scope.
fn existing(settings: &Settings, client: &Client, namespace: &str, set: &DaemonSet) -> Finding {
    // Kubernetes deletes the objects of a Namespace in any order, so it may delete this pod before
    // the DaemonSet.
    match is_being_deleted(client, namespace) {
        Ok(true) => return deleted_namespace(namespace),
        Ok(false) => {}
        Err(error) if error.code() == Some(404) || is_temporary(&error) => {
            return Finding::Unclear(error.to_string());
        }
        Err(_) => {}
    }
    let Some(name) = &settings.node_name else {
        return Finding::InScope;
    };
    match client.get::<Node>(&format!("/api/v1/nodes/{name}")) {
        Ok(node) if node.metadata.name != *name => another_object("Node", name),
        Ok(node) => match scope::exclusion(&set.spec.template.spec, &node) {
            Some(why) => out_of_scope(
                settings,
                client,
                namespace,
                format!("node {name} is no longer in the DaemonSet's scope: {why}"),
            ),
            None => Finding::InScope,
        },
        Err(error) if is_temporary(&error) => Finding::Unclear(error.to_string()),
        // Upstream's chart does not let the agent read Nodes.
        Err(_) => Finding::InScope,
    }
}

/// Finds out whether this agent leaves the node, which is out of the DaemonSet's scope because of
/// `why`. Kubernetes keeps running pods on a node with a new `NoSchedule` taint, so the kubelet may
/// only be restarting the agent's container.
fn out_of_scope(settings: &Settings, client: &Client, namespace: &str, why: String) -> Finding {
    let Some(name) = &settings.pod_name else {
        return Finding::StillRunning(format!("{why}, but the name of the agent's pod is not set"));
    };
    match client.get::<Pod>(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
        Ok(pod) if pod.metadata.name != *name => another_object("Pod", name),
        Ok(pod) if pod.metadata.deletion_timestamp.is_some() => Finding::Uninstalled(why),
        Ok(_) => {
            Finding::StillRunning(format!("{why}, but pod {namespace}/{name} is not being deleted"))
        }
        Err(error) if error.is_status(404, NOT_FOUND) => Finding::Uninstalled(why),
        Err(error) if error.code() == Some(404) || is_temporary(&error) => {
            Finding::Unclear(error.to_string())
        }
        Err(error) => {
            Finding::StillRunning(format!("{why}, but the agent cannot read its pod: {error}"))
        }
    }
}

/// Finds out whether the plugin's token is rejected too, after the agent's token was. The agent's
/// token is also revoked with its pod, so it alone proves nothing. The token in the kubeconfig is
/// valid as long as the release has its ServiceAccount. Both tokens may be the same.
fn rejected(settings: &Settings, own: Option<&str>, namespace: &str, timeout: Duration) -> Finding {
    let kubeconfig = AccessSource::Kubeconfig(settings.kubeconfig());
    let mut plugin = Connection::new(kubeconfig, USER_AGENT, Deadlines::each(timeout));
    let client = plugin.client();
    let token = plugin.token();
    for (token, whose) in [(own, "the agent's own token"), (token, "the plugin's token")] {
        if token.is_some_and(has_expired) {
            return Finding::Unclear(format!(
                "the API server rejected the agent's own token (HTTP 401), which proves nothing: \
                 {whose} has expired"
            ));
        }
    }
    let client = match (client, token) {
        (Ok(_), Some(token)) if Some(token) == own => return Finding::Rejected,
        (Ok(client), Some(_)) => client,
        _ if settings.plugin_account.is_none() => return Finding::Rejected,
        (Err(error), _) => {
            return Finding::Unclear(format!(
                "the API server rejected the agent's own token (HTTP 401), and the plugin's token \
                 cannot be read: {error}"
            ));
        }
        (Ok(_), None) => {
            return Finding::Unclear(
                "the API server rejected the agent's own token (HTTP 401), and the kubeconfig has no token"
                    .into(),
            );
        }
    };
    match is_being_deleted(&client, namespace) {
        Ok(true) => deleted_namespace(namespace),
        Err(error) if error.is_status(401, UNAUTHORIZED) => Finding::Rejected,
        // A busy or failing API server may not have checked the token.
        Err(error) if is_temporary(&error) || error.code().is_none_or(|code| code == 401) => {
            Finding::Unclear(error.to_string())
        }
        Ok(false) | Err(_) => Finding::Unclear(
            "the API server rejected the agent's own token (HTTP 401) and accepted the plugin's token".into(),
        ),
    }
}

/// Whether the Namespace is being deleted.
fn is_being_deleted(client: &Client, namespace: &str) -> Result<bool, Error> {
    let namespace = client.get::<Namespace>(&format!("/api/v1/namespaces/{namespace}"))?;
    Ok(namespace.metadata.deletion_timestamp.is_some())
}

/// Whether the token has expired. An expired token does not prove that its ServiceAccount was
/// deleted.
fn has_expired(token: &str) -> bool {
    Claims::read(token).is_some_and(|claims| claims.has_expired(SystemTime::now()))
}

fn another_object(kind: &str, name: &str) -> Finding {
    Finding::Unclear(format!("unexpected response: another object instead of {kind} {name}"))
}

/// The finding for a Namespace that is being deleted.
fn deleted_namespace(namespace: &str) -> Finding {
    Finding::Uninstalled(format!("namespace {namespace} is being deleted"))
}

/// Whether the next round may get a different response.
fn is_temporary(error: &Error) -> bool {
    error.retry() != Retry::Never
}
