//! Decides which kubeconfig belongs on the host, and checks that the API server accepts its token.

use super::findings::Finding::{self, Problem, Waiting, Warning};
use super::plugin_token::{PluginToken, content};
use crate::agent::api_thread::server_address::ServerAddress;
use crate::agent::api_thread::{ApiHandle, TokenValidity};
use crate::agent::settings::Settings;
use crate::agent::yielding::OtherAgent;
use crate::kube::kubeconfig::{self, ApiAccess};
use crate::node::observed::Observed;

const NOT_RESPONDED: &str = "the API server has not responded yet";

/// The kubeconfig that belongs on the host.
pub enum DesiredKubeconfig {
    /// The kubeconfig of this agent.
    Own { text: String, token: String },
    /// The kubeconfig of a newer agent, with its token.
    NewerAgents { token: String },
    /// The kubeconfig of an upstream agent.
    UpstreamAgents,
    /// The kubeconfig on the host, whoever wrote it, because this agent is stopping.
    OnHost,
    /// No kubeconfig can be written yet.
    Missing(Finding),
}

/// Decision which kubeconfig belongs on the host.
pub struct KubeconfigDecision {
    pub desired: DesiredKubeconfig,
    /// Why the API server's name cannot be resolved, while its last address stays in use.
    pub address_error: Option<String>,
    /// Why the last TokenRequest failed, while another token is in use.
    pub request_error: Option<String>,
}

impl From<DesiredKubeconfig> for KubeconfigDecision {
    fn from(desired: DesiredKubeconfig) -> KubeconfigDecision {
        KubeconfigDecision { desired, address_error: None, request_error: None }
    }
}

impl KubeconfigDecision {
    /// Returns the text to write to the host, if any.
    pub fn text(&self) -> Option<&str> {
        match &self.desired {
            DesiredKubeconfig::Own { text, .. } => Some(text),
            DesiredKubeconfig::NewerAgents { .. }
            | DesiredKubeconfig::UpstreamAgents
            | DesiredKubeconfig::OnHost
            | DesiredKubeconfig::Missing(_) => None,
        }
    }

    /// Returns why there is no kubeconfig for the plugin.
    pub fn missing(&self) -> Option<&Finding> {
        match &self.desired {
            DesiredKubeconfig::Missing(why) => Some(why),
            DesiredKubeconfig::Own { .. }
            | DesiredKubeconfig::NewerAgents { .. }
            | DesiredKubeconfig::UpstreamAgents
            | DesiredKubeconfig::OnHost => None,
        }
    }
}

/// Decides which kubeconfig belongs on the host: no kubeconfig without a token, and the kubeconfig
/// of another agent (`kept`) if it stays in use.
pub fn decide(
    settings: &Settings,
    api: &ApiHandle,
    is_stopping: bool,
    kept: Option<OtherAgent>,
    token: &PluginToken,
    observed: &Observed,
) -> KubeconfigDecision {
    // The decision to uninstall needs this token: the agent's own token ends with its pod.
    if is_stopping && observed.token().is_some() {
        return DesiredKubeconfig::OnHost.into();
    }
    if is_stopping {
        let why = "the kubeconfig has no token, and the agent is stopping";
        return DesiredKubeconfig::Missing(Waiting(why.into())).into();
    }
    let address = api.server_address();
    let address_error = match (&address.address, &address.error) {
        (Some(_), Some(why)) => Some(format!(
            "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
        )),
        _ => None,
    };
    let (access, text) = match (own_access(settings, address), token.text.clone()) {
        (Ok(access), Ok(text)) => (access, text),
        (Err(why), _) | (Ok(_), Err(why)) => {
            let desired = DesiredKubeconfig::Missing(why);
            return KubeconfigDecision { desired, address_error, request_error: None };
        }
    };
    let request_error = token.request_error.clone();
    let desired = choose(api, kept, access, text, observed);
    KubeconfigDecision { desired, address_error, request_error }
}

/// Chooses between the kubeconfig of this agent, with `access` and `token`, and the kubeconfig of
/// the other agent whose files stay in use. The kubeconfig of a newer agent stays unless the API
/// server rejects its token.
fn choose(
    api: &ApiHandle,
    kept: Option<OtherAgent>,
    access: ApiAccess,
    token: String,
    observed: &Observed,
) -> DesiredKubeconfig {
    match (kept, observed.token()) {
        (Some(OtherAgent::Newer), Some(found))
            if !matches!(api.token_status(found, false).validity, TokenValidity::Rejected(_)) =>
        {
            DesiredKubeconfig::NewerAgents { token: found.to_owned() }
        }
        (Some(OtherAgent::Upstream), _) => DesiredKubeconfig::UpstreamAgents,
        (Some(OtherAgent::Newer) | None, _) => {
            let text = kubeconfig::render(&ApiAccess { token: Some(token.clone()), ..access });
            DesiredKubeconfig::Own { text, token }
        }
    }
}

/// Returns what is wrong with the token in the kubeconfig that `decision` put on the host.
/// `is_new`: the kubeconfig was written just now.
///
/// An unreachable API server is only a warning, as upstream's agent sends no requests. The
/// exception: the plugin has a ServiceAccount of its own, and the API server has not responded
/// since the start. Then the node is not ready.
pub fn check_token(
    settings: &Settings,
    api: &ApiHandle,
    decision: &KubeconfigDecision,
    is_new: bool,
) -> Option<Finding> {
    let has_account = settings.plugin_account.is_some();
    let token = match &decision.desired {
        DesiredKubeconfig::Own { token, .. } | DesiredKubeconfig::NewerAgents { token } => token,
        DesiredKubeconfig::UpstreamAgents if has_account && !api.history().has_responded() => {
            return Some(Waiting(NOT_RESPONDED.into()));
        }
        DesiredKubeconfig::UpstreamAgents
        | DesiredKubeconfig::OnHost
        | DesiredKubeconfig::Missing(_) => return None,
    };
    let status = api.token_status(token, is_new);
    let request_error = match &decision.request_error {
        Some(why) => format!("; {why}"),
        None => String::new(),
    };
    if let TokenValidity::Rejected(why) = status.validity {
        return Some(Problem(format!("{why}{request_error}")));
    }
    if has_account && !status.responded {
        return Some(match status.error {
            Some(error) => Problem(format!("{NOT_RESPONDED}: {error}{request_error}")),
            None => Waiting(NOT_RESPONDED.into()),
        });
    }
    let error = status.error?;
    Some(Warning(format!("cannot check the token in the kubeconfig: {error}")))
}

/// Reads the API server's address, the CA and the agent's own token, with which the agent also
/// requests the token of a plugin's ServiceAccount. `resolved` is the address if the settings have
/// a host name. No error contains a credential.
fn own_access(settings: &Settings, resolved: ServerAddress) -> Result<ApiAccess, Finding> {
    let Some(host) = settings.api_host.as_deref() else {
        return Err(Problem("KUBERNETES_SERVICE_HOST is not set".into()));
    };
    let Some(port) = settings.api_port.as_deref() else {
        return Err(Problem("KUBERNETES_SERVICE_PORT is not set".into()));
    };
    let tls_server_name = settings.api_name().map(str::to_owned);
    let server = match (&tls_server_name, resolved.address, resolved.error) {
        (None, ..) => kubeconfig::server(host, port),
        (Some(_), Some(address), _) => kubeconfig::server(&address.to_string(), port),
        (Some(name), None, None) => {
            return Err(Waiting(format!("waiting for the address of the API server {name}")));
        }
        (Some(name), None, Some(why)) => {
            return Err(Problem(format!(
                "cannot resolve the API server's name {name}: {why}; check KUBERNETES_SERVICE_HOST \
                 and the DNS of the agent's pod, or set dnsPolicy=Default to use the node's DNS"
            )));
        }
    };
    let token = Some(content(&settings.service_account_dir.join("token")).map_err(Problem)?);
    let ca = match &settings.ca_file {
        None => content(&settings.service_account_dir.join("ca.crt")),
        Some(path) => content(path).map_err(|why| {
            let path = path.display();
            format!(
                "KUBE_CA_FILE={path}: {why}; set it to a file with CA certificates, or unset it"
            )
        }),
    };
    let ca = ca.map_err(Problem)?.into_bytes();
    Ok(ApiAccess { server, tls_server_name, ca, token })
}
