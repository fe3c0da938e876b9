//! Gathers the evidence for and against an uninstall from the API server. Decides nothing.

use std::time::{Duration, Instant, SystemTime};

use crate::agent::api_history::ApiHistory;
use crate::agent::api_thread::ApiHandle;
use crate::agent::identity::{self, PodName, USER_AGENT};
use crate::agent::own_pod::{OwnPod, Owner, SeenPod};
use crate::agent::settings::Settings;
use crate::kube::claims::Claims;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::scheduling::{self, DaemonSet, Node, daemonset_path};
use crate::kube::types::{Namespace, Pod};
use crate::kube::{Client, Deadlines, Error, NOT_FOUND, Retry, UNAUTHORIZED};

/// All that an agent knows when it has to decide whether to uninstall.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The agent's own pod, as a watch or a request of [`gather`] showed it last.
    pub own_pod: OwnPod,
    /// What the API server's responses had shown when the agent received the signal.
    pub before: ApiHistory,
    /// When the agent received the signal.
    pub begin: Instant,
    /// When the agent stops asking the API server for proof.
    pub end: Instant,
    /// An agent that started after this one runs on the node.
    pub newer_agent_runs: bool,
    /// When such an agent was seen last, since `begin`.
    pub newer_agent_seen: Option<Instant>,
    /// Another agent ran on the node when this one started. It may have ended since.
    pub older_agent_ran: bool,
    /// Results of the rounds of requests since `begin`, and when each ended.
    pub rounds: Vec<(Instant, Round)>,
}

/// What the responses of one round of requests show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// A response since the signal shows that the agent's pod is not being deleted.
    PodStays,
    NamespaceBeingDeleted,
    /// The DaemonSet that owns the agent's pod is gone or being deleted, for this reason.
    DaemonSetEnds(String),
    /// The DaemonSet that owns the agent's pod is gone, and another one has its name, as this text
    /// says.
    DaemonSetReplaced(String),
    /// The DaemonSet exists, and this node is out of its scope for this reason.
    OutOfScope(String),
    /// The DaemonSet is not being deleted, and nothing shows that this node is out of its scope.
    InScope,
    /// HTTP 401 with Kubernetes' Status for the agent's `own` token, and for the plugin's, which
    /// may be the same.
    TokensRejected {
        own: TokenFacts,
        plugin: TokenFacts,
    },
    /// HTTP 401 with Kubernetes' Status for the agent's own token. The text says why the plugin's
    /// token is not known to be rejected.
    OwnTokenRejected(String),
    /// No DaemonSet is known, the response is another one, or the request timed out.
    Unclear(String),
    /// No request got a response, no API server or namespace is configured, or the credential
    /// cannot be read.
    Unreachable(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenFacts {
    pub has_expired: bool,
    /// The token is bound to no pod, so it is valid as long as its ServiceAccount exists.
    pub outlives_pod: bool,
}

impl TokenFacts {
    /// Reads the claims of `token`. Without claims, the token is not known to have expired or to
    /// outlive the pod.
    fn read(token: &str) -> TokenFacts {
        match Claims::read(token) {
            Some(claims) => TokenFacts {
                has_expired: claims.has_expired(SystemTime::now()),
                outlives_pod: claims.pod().is_none(),
            },
            None => TokenFacts::default(),
        }
    }
}

/// Why a round ends without what a request was to show.
enum RoundEnd {
    /// HTTP 401 with Kubernetes' Status for the agent's own token.
    OwnTokenRejected,
    Early(Round),
}

/// Sends the requests of one round, and records in `api` what they show of the agent's pod. Uses
/// new connections, so that a load balancer may choose another API server in each round. `timeout`
/// bounds each phase of a request.
pub fn gather(settings: &Settings, api: &ApiHandle, timeout: Duration) -> Round {
    let Some(source) = identity::access_source(settings) else {
        return Round::Unreachable("no API server is configured".into());
    };
    let Some(namespace) = identity::namespace(settings) else {
        return Round::Unreachable(identity::NO_NAMESPACE.into());
    };
    let mut own = Connection::new(source, USER_AGENT, Deadlines::per_phase(timeout));
    let client = match own.client() {
        Ok(client) => client,
        Err(error) => return Round::Unreachable(error.to_string()),
    };
    match ask_with_own_token(settings, api, &client, &namespace) {
        Ok(round) | Err(RoundEnd::Early(round)) => round,
        Err(RoundEnd::OwnTokenRejected) => {
            ask_with_plugin_token(settings, own.token().unwrap_or_default(), &namespace, timeout)
        }
    }
}

/// Sends the requests with the agent's own token: for its pod, its DaemonSet and its Namespace.
fn ask_with_own_token(
    settings: &Settings,
    api: &ApiHandle,
    client: &Client,
    namespace: &str,
) -> Result<Round, RoundEnd> {
    let mut unreadable = None;
    if !api.own_pod().is_being_deleted() {
        unreadable = look_at_own_pod(settings, api, client)?;
        if unreadable.is_none() && !api.own_pod().is_being_deleted() {
            return Ok(Round::PodStays);
        }
    }
    if let Some(owner) = api.own_pod().daemonset {
        return ask_about_daemonset(settings, client, namespace, &owner);
    }
    match is_being_deleted(client, namespace) {
        Ok(true) => Ok(Round::NamespaceBeingDeleted),
        Err(error) if error.code() != Some(403) => Err(round_end(&error)),
        Ok(false) | Err(_) => Ok(Round::Unclear(
            unreadable.unwrap_or_else(|| "the agent's pod belongs to no DaemonSet".into()),
        )),
    }
}

/// Reads the agent's pod, and records in `api` what the response shows. Returns why the pod stays
/// unknown if the agent has no right to read it, or does not know its name.
fn look_at_own_pod(
    settings: &Settings,
    api: &ApiHandle,
    client: &Client,
) -> Result<Option<String>, RoundEnd> {
    let Some(PodName { namespace, name, .. }) = identity::pod_name(settings) else {
        return Ok(Some("the name of the agent's pod is unknown: set LINKERD_CNI_POD_NAME".into()));
    };
    match client.get::<Pod>(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
        Ok(pod) if pod.metadata.name != name => Err(another_object("Pod", &name)),
        Ok(pod) => {
            api.record_own_pod(|own_pod| own_pod.record_seen(SeenPod::read(&pod.metadata)));
            Ok(None)
        }
        Err(error) if error.is_status(404, NOT_FOUND) => {
            api.record_own_pod(OwnPod::record_gone);
            Ok(None)
        }
        Err(error) if error.code() == Some(403) => {
            Ok(Some(format!("the agent cannot read its pod: {error}")))
        }
        Err(error) => Err(round_end(&error)),
    }
}

/// Completes the round with the DaemonSet that owns the agent's pod.
fn ask_about_daemonset(
    settings: &Settings,
    client: &Client,
    namespace: &str,
    owner: &Owner,
) -> Result<Round, RoundEnd> {
    let name = &owner.name;
    let end = match client.get::<DaemonSet>(&daemonset_path(namespace, name)) {
        Ok(set) if set.metadata.name != *name => return Err(another_object("DaemonSet", name)),
        Ok(set) if set.metadata.uid != owner.uid => {
            return Ok(Round::DaemonSetReplaced(format!(
                "DaemonSet {namespace}/{name} does not exist: another one has its name"
            )));
        }
        Ok(set) if set.metadata.deletion_timestamp.is_some() => "is being deleted",
        Ok(set) => return ask_about_scope(settings, client, namespace, &set),
        Err(error) if error.is_status(404, NOT_FOUND) => "does not exist",
        Err(error) => return Err(round_end(&error)),
    };
    Ok(Round::DaemonSetEnds(format!("DaemonSet {namespace}/{name} {end}")))
}

/// Completes the round for a DaemonSet that is not being deleted.
fn ask_about_scope(
    settings: &Settings,
    client: &Client,
    namespace: &str,
    set: &DaemonSet,
) -> Result<Round, RoundEnd> {
    // When a Namespace is deleted, this pod may be deleted before the DaemonSet is.
    match is_being_deleted(client, namespace) {
        Ok(true) => return Ok(Round::NamespaceBeingDeleted),
        Ok(false) => {}
        Err(error) if error.code() == Some(404) || is_temporary(&error) => {
            return Err(round_end(&error));
        }
        // Without the right to read the Namespace (HTTP 403), the DaemonSet decides.
        Err(_) => {}
    }
    match &settings.node_name {
        Some(name) => ask_about_node(client, name, set),
        None => Ok(Round::InScope),
    }
}

/// Completes the round with the agent's Node: whether it is in the scope of the DaemonSet.
fn ask_about_node(client: &Client, name: &str, set: &DaemonSet) -> Result<Round, RoundEnd> {
    let node = match client.get::<Node>(&format!("/api/v1/nodes/{name}")) {
        Ok(node) => node,
        Err(error) if is_temporary(&error) => return Err(round_end(&error)),
        // Without the right to read Nodes, nothing shows that the node is out of the scope.
        Err(_) => return Ok(Round::InScope),
    };
    if node.metadata.name != name {
        return Err(another_object("Node", name));
    }
    match scheduling::exclusion(&set.spec.template.spec, &node) {
        Some(why) => Ok(Round::OutOfScope(format!(
            "node {name} is no longer in the DaemonSet's scope: {why}"
        ))),
        None => Ok(Round::InScope),
    }
}

/// Completes the round after the agent's `own` token was rejected.
fn ask_with_plugin_token(
    settings: &Settings,
    own: &str,
    namespace: &str,
    timeout: Duration,
) -> Round {
    let kubeconfig = AccessSource::Kubeconfig(settings.node.kubeconfig());
    let mut connection = Connection::new(kubeconfig, USER_AGENT, Deadlines::per_phase(timeout));
    let client = connection.client();
    let token = connection.token();
    let plugin = TokenFacts::read(token.unwrap_or(own));
    let rejected = Round::TokensRejected { own: TokenFacts::read(own), plugin };
    let (client, token) = match (client, token) {
        (Ok(client), Some(token)) => (client, token),
        _ if settings.plugin_account.is_none() => return rejected,
        (Err(error), _) => {
            let why = format!("the plugin's token cannot be read: {error}");
            return Round::OwnTokenRejected(why);
        }
        (Ok(_), None) => return Round::OwnTokenRejected("the kubeconfig has no token".into()),
    };
    if token == own {
        return rejected;
    }
    match is_being_deleted(&client, namespace) {
        Ok(true) => Round::NamespaceBeingDeleted,
        Err(error) if error.is_status(401, UNAUTHORIZED) => rejected,
        // A busy or failing API server may not have checked the token.
        Err(error) if is_temporary(&error) || error.code().is_none_or(|code| code == 401) => {
            Round::OwnTokenRejected(error.to_string())
        }
        Ok(false) | Err(_) => Round::OwnTokenRejected("accepted the plugin's token".into()),
    }
}

fn is_being_deleted(client: &Client, namespace: &str) -> Result<bool, Error> {
    let found = client.get::<Namespace>(&format!("/api/v1/namespaces/{namespace}"))?.metadata;
    Ok(found.name == namespace && found.deletion_timestamp.is_some())
}

fn another_object(kind: &str, name: &str) -> RoundEnd {
    let why = format!("unexpected response: another object instead of {kind} {name}");
    RoundEnd::Early(Round::Unclear(why))
}

/// Returns how a round ends in which a request failed with `error`.
fn round_end(error: &Error) -> RoundEnd {
    if error.is_status(401, UNAUTHORIZED) {
        RoundEnd::OwnTokenRejected
    } else if error.is_response() || error.is_timeout() || error.is_unreadable() {
        RoundEnd::Early(Round::Unclear(error.to_string()))
    } else {
        RoundEnd::Early(Round::Unreachable(error.to_string()))
    }
}

/// Whether the next round may get a different response.
fn is_temporary(error: &Error) -> bool {
    error.retry() != Retry::Never
}
