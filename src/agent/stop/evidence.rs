//! Gathers the evidence for and against an uninstall from the API server. Decides nothing.

use std::time::{Duration, Instant, SystemTime};

use crate::agent::api_history::ApiHistory;
use crate::agent::api_thread::ApiHandle;
use crate::agent::identity::{self, PodName, USER_AGENT};
use crate::agent::own_pod::{OwnPod, Owner, SeenPod};
use crate::agent::settings::Settings;
use crate::kube::claims::Claims;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::{self, DaemonSet, Node, daemonset_path};
use crate::kube::types::{Namespace, Pod};
use crate::kube::{Client, Deadlines, Error, FORBIDDEN, NOT_FOUND, UNAUTHORIZED};

const ACCEPTED: &str = "accepted the plugin's token";

/// All that an agent knows when it has to decide whether to uninstall.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The agent's own pod, as a watch or a request of [`gather`] showed it last.
    pub own_pod: OwnPod,
    /// What the API server's responses had shown of the tokens when the agent received the signal.
    pub history: ApiHistory,
    /// When the agent received the signal.
    pub begin: Instant,
    /// When the agent stops asking the API server for proof.
    pub end: Instant,
    /// Whether an agent that started after this one runs on the node.
    pub newer_agent_runs: bool,
    /// When such a newer agent was seen last. `None` if none was seen since `begin`.
    pub newer_agent_seen: Option<Instant>,
    /// Whether another agent ran on the node when this one started. That agent may have ended
    /// since.
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
    /// No conclusion is possible, for this reason: no DaemonSet is known, the API server sent any
    /// other response, or a request timed out.
    Unclear(String),
    /// The API server was not reached, for this reason: no request got a response, no API server or
    /// namespace is configured, or the credential cannot be read.
    Unreachable(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenFacts {
    pub has_expired: bool,
    /// Whether the token is bound to no pod, so that the end of the pod does not make it invalid.
    pub outlives_pod: bool,
}

impl TokenFacts {
    /// Reads the claims of `token`. If the token has no claims, it counts as one that has not
    /// expired and does not outlive the pod.
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

/// Why a round ends at a request that did not get the expected response.
enum RoundEnd {
    /// HTTP 401 with Kubernetes' Status for the agent's own token. The plugin's token has to be
    /// tried.
    OwnTokenRejected,
    /// The round ends with this result.
    Result(Round),
}

/// Sends the requests of one round, and records in `api` what they show of the agent's pod. Uses
/// new connections, so that a load balancer may choose another API server in each round. `timeout`
/// bounds each phase of a request.
pub fn gather(settings: &Settings, api: &ApiHandle, timeout: Duration) -> Round {
    let Some(source) = identity::access_source(settings) else {
        return Round::Unreachable("no API server is configured".into());
    };
    let Some(namespace) = identity::agent_namespace(settings) else {
        return Round::Unreachable(identity::NO_NAMESPACE.into());
    };
    let mut own = Connection::new(source, USER_AGENT, Deadlines::per_phase(timeout));
    let client = match own.client() {
        Ok(client) => client,
        Err(error) => return Round::Unreachable(error.to_string()),
    };
    match ask_with_own_token(settings, api, &client, &namespace) {
        Ok(round) | Err(RoundEnd::Result(round)) => round,
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
    let mut why_no_owner = "the agent's pod belongs to no DaemonSet".to_owned();
    if !api.own_pod().is_being_deleted() {
        match ask_about_own_pod(settings, api, client)? {
            PodResponse::Recorded => {
                if !api.own_pod().is_being_deleted() {
                    return Ok(Round::PodStays);
                }
            }
            PodResponse::Unknown(why) => why_no_owner = why,
        }
    }
    if let Some(owner) = api.own_pod().daemonset {
        return ask_about_daemonset(settings, client, namespace, &owner);
    }
    if read_namespace(client, namespace)? == NamespaceState::BeingDeleted {
        return Ok(Round::NamespaceBeingDeleted);
    }
    Ok(Round::Unclear(why_no_owner))
}

/// Outcome of the request for the agent's own pod.
enum PodResponse {
    /// The response shows the pod, or that the pod is gone. It is recorded in the [`ApiHandle`].
    Recorded,
    /// The agent has no right to read its pod, or does not know the name of its pod, as this text
    /// says.
    Unknown(String),
}

/// Reads the agent's pod, and records in `api` what the response shows.
fn ask_about_own_pod(
    settings: &Settings,
    api: &ApiHandle,
    client: &Client,
) -> Result<PodResponse, RoundEnd> {
    let Some(PodName { namespace, name, .. }) = identity::pod_name(settings) else {
        let why = "the name of the agent's pod is unknown: set LINKERD_CNI_POD_NAME";
        return Ok(PodResponse::Unknown(why.into()));
    };
    match client.get::<Pod>(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
        Ok(pod) if pod.metadata.name != name => Err(another_object("Pod", &name)),
        Ok(pod) => {
            api.update_own_pod(|own_pod| own_pod.record_seen(SeenPod::read(&pod.metadata)));
            Ok(PodResponse::Recorded)
        }
        Err(error) if error.is_status(404, NOT_FOUND) => {
            api.update_own_pod(OwnPod::record_gone);
            Ok(PodResponse::Recorded)
        }
        Err(error) if error.is_status(403, FORBIDDEN) => {
            Ok(PodResponse::Unknown(format!("the agent cannot read its pod: {error}")))
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
    let set = match client.get::<DaemonSet>(&daemonset_path(namespace, name)) {
        Ok(set) => set,
        Err(error) if error.is_status(404, NOT_FOUND) => {
            let why = format!("DaemonSet {namespace}/{name} does not exist");
            return Ok(Round::DaemonSetEnds(why));
        }
        Err(error) => return Err(round_end(&error)),
    };
    if set.metadata.name != *name {
        return Err(another_object("DaemonSet", name));
    }
    if set.metadata.uid != owner.uid {
        return Ok(Round::DaemonSetReplaced(format!(
            "DaemonSet {namespace}/{name} does not exist: another one has its name"
        )));
    }
    if set.metadata.deletion_timestamp.is_some() {
        let why = format!("DaemonSet {namespace}/{name} is being deleted");
        return Ok(Round::DaemonSetEnds(why));
    }
    ask_about_scope(settings, client, namespace, &set)
}

/// Completes the round for a DaemonSet that is not being deleted.
fn ask_about_scope(
    settings: &Settings,
    client: &Client,
    namespace: &str,
    set: &DaemonSet,
) -> Result<Round, RoundEnd> {
    // When the Namespace is deleted, this pod may be deleted earlier than the DaemonSet. So a
    // DaemonSet that still exists is no proof against an uninstall before the Namespace was read.
    match read_namespace(client, namespace)? {
        NamespaceState::BeingDeleted => return Ok(Round::NamespaceBeingDeleted),
        // If the agent has no right to read the Namespace, the DaemonSet decides.
        NamespaceState::Exists | NamespaceState::Denied => {}
    }
    match &settings.node_name {
        Some(name) => ask_about_node(client, name, set),
        None => Ok(Round::InScope),
    }
}

/// Completes the round with the agent's Node, which may be out of the scope of the DaemonSet.
fn ask_about_node(client: &Client, name: &str, set: &DaemonSet) -> Result<Round, RoundEnd> {
    let node = match client.get::<Node>(&format!("/api/v1/nodes/{name}")) {
        Ok(node) => node,
        // If the agent has no right to read Nodes, nothing shows that its node is out of the scope.
        // Neither does a missing Node: kubelet registers it again.
        Err(error) if error.is_denied_or_missing() => return Ok(Round::InScope),
        Err(error) => return Err(round_end(&error)),
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

/// Completes the round after the agent's `own_token` was rejected: reads the Namespace with the
/// plugin's token, to find out whether this token is rejected, too.
fn ask_with_plugin_token(
    settings: &Settings,
    own_token: &str,
    namespace: &str,
    timeout: Duration,
) -> Round {
    let kubeconfig = AccessSource::Kubeconfig(settings.node.kubeconfig());
    let mut connection = Connection::new(kubeconfig, USER_AGENT, Deadlines::per_phase(timeout));
    let client = connection.client();
    let plugin_token = connection.token();
    let both_rejected = Round::TokensRejected {
        own: TokenFacts::read(own_token),
        plugin: TokenFacts::read(plugin_token.unwrap_or(own_token)),
    };
    let has_own_account = settings.plugin_account.is_some();
    let client = match client {
        Ok(client) => client,
        Err(error) if has_own_account => {
            let why = format!("the plugin's token cannot be read: {error}");
            return Round::OwnTokenRejected(why);
        }
        // The plugin uses the agent's own token, which was rejected.
        Err(_) => return both_rejected,
    };
    let Some(plugin_token) = plugin_token else {
        if has_own_account {
            return Round::OwnTokenRejected("the kubeconfig has no token".into());
        }
        return both_rejected;
    };
    if plugin_token == own_token {
        return both_rejected;
    }
    match client.get::<Namespace>(&namespace_path(namespace)) {
        Ok(found) if found.metadata.name != namespace => Round::OwnTokenRejected(format!(
            "the response to the plugin's token is another object than Namespace {namespace}"
        )),
        Ok(found) if found.metadata.deletion_timestamp.is_some() => Round::NamespaceBeingDeleted,
        Ok(_) => Round::OwnTokenRejected(ACCEPTED.into()),
        Err(error) if error.is_denied_or_missing() => Round::OwnTokenRejected(ACCEPTED.into()),
        Err(error) if error.is_status(401, UNAUTHORIZED) => both_rejected,
        // The API server, or a proxy in front of it, may have responded without a check of the
        // token.
        Err(error) => Round::OwnTokenRejected(error.to_string()),
    }
}

/// What the API server shows of the agent's Namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamespaceState {
    Exists,
    BeingDeleted,
    /// The agent has no right to read the Namespace.
    Denied,
}

/// Reads the agent's Namespace. The round ends if the response shows nothing of the Namespace, as
/// that of a proxy in front of the API server.
fn read_namespace(client: &Client, namespace: &str) -> Result<NamespaceState, RoundEnd> {
    match client.get::<Namespace>(&namespace_path(namespace)) {
        Ok(found) if found.metadata.name != namespace => {
            Err(another_object("Namespace", namespace))
        }
        Ok(found) if found.metadata.deletion_timestamp.is_some() => {
            Ok(NamespaceState::BeingDeleted)
        }
        Ok(_) => Ok(NamespaceState::Exists),
        Err(error) if error.is_status(403, FORBIDDEN) => Ok(NamespaceState::Denied),
        Err(error) => Err(round_end(&error)),
    }
}

/// Returns how a round ends in which the API server responded with another object than requested.
fn another_object(kind: &str, name: &str) -> RoundEnd {
    let why = format!("unexpected response: another object instead of {kind} {name}");
    RoundEnd::Result(Round::Unclear(why))
}

/// Returns how a round ends in which a request failed with `error`.
fn round_end(error: &Error) -> RoundEnd {
    if error.is_status(401, UNAUTHORIZED) {
        RoundEnd::OwnTokenRejected
    } else if error.is_response() || error.is_timeout() || error.is_unreadable() {
        RoundEnd::Result(Round::Unclear(error.to_string()))
    } else {
        RoundEnd::Result(Round::Unreachable(error.to_string()))
    }
}
