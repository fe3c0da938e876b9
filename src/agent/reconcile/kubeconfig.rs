//! Decides which kubeconfig belongs on the host, and checks that the API server accepts its token.

use std::net::IpAddr;

use super::findings::Finding::{self, Problem, Waiting, Warning};
use super::plugin_token::{PluginToken, read_text};
use crate::agent::api_thread::server_address::ServerAddress;
use crate::agent::api_thread::{ApiHandle, TokenStatus, TokenValidity};
use crate::agent::settings::Settings;
use crate::agent::yielding::OtherAgent;
use crate::kube::kubeconfig::{self, ApiAccess};
use crate::node::observed::Observed;

const NOT_RESPONDED: &str = "the API server has not responded yet";

/// The kubeconfig that belongs on the host.
pub enum DesiredKubeconfig {
    /// The kubeconfig of this agent.
    Own { text: String, token: String },
    /// The kubeconfig on the host, which a newer agent wrote, with this token.
    OfNewerAgent { token: String },
    /// The kubeconfig on the host, which an upstream agent wrote.
    OfUpstreamAgent,
    /// The kubeconfig on the host, whoever wrote it, because this agent is stopping.
    OnHost,
    /// None, because the agent cannot write a kubeconfig yet, for this reason.
    Missing(Finding),
}

/// The decision which kubeconfig belongs on the host.
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
    /// Returns the text that this agent has to write to the host. `None` if the kubeconfig on the
    /// host stays as it is.
    pub fn text_to_write(&self) -> Option<&str> {
        match &self.desired {
            DesiredKubeconfig::Own { text, .. } => Some(text),
            DesiredKubeconfig::OfNewerAgent { .. }
            | DesiredKubeconfig::OfUpstreamAgent
            | DesiredKubeconfig::OnHost
            | DesiredKubeconfig::Missing(_) => None,
        }
    }

    /// Returns why there is no kubeconfig for the plugin. `None` if there is one.
    pub fn missing(&self) -> Option<&Finding> {
        match &self.desired {
            DesiredKubeconfig::Missing(why) => Some(why),
            DesiredKubeconfig::Own { .. }
            | DesiredKubeconfig::OfNewerAgent { .. }
            | DesiredKubeconfig::OfUpstreamAgent
            | DesiredKubeconfig::OnHost => None,
        }
    }
}

/// Decides which kubeconfig belongs on the host. `kept` is the other agent whose files stay in use,
/// if there is one. `token` is the token for the kubeconfig of this agent.
pub fn decide(
    settings: &Settings,
    api: &ApiHandle,
    is_stopping: bool,
    kept: Option<OtherAgent>,
    token: &PluginToken,
    observed: &Observed,
) -> KubeconfigDecision {
    if is_stopping {
        return decide_while_stopping(observed).into();
    }
    let address = api.server_address();
    let address_error = describe_kept_address(&address);
    let (access, plugin_token) = match own_access_and_token(settings, address, token) {
        Ok(access_and_token) => access_and_token,
        Err(why) => {
            let desired = DesiredKubeconfig::Missing(why);
            return KubeconfigDecision { desired, address_error, request_error: None };
        }
    };
    let request_error = token.request_error.clone();
    let desired = choose_writer(api, kept, access, plugin_token, observed);
    KubeconfigDecision { desired, address_error, request_error }
}

/// Decides for an agent that is stopping, which keeps the kubeconfig on the host. The agent needs
/// the token there to decide whether to uninstall, because its own token becomes invalid with its
/// pod.
fn decide_while_stopping(observed: &Observed) -> DesiredKubeconfig {
    if observed.token().is_some() {
        return DesiredKubeconfig::OnHost;
    }
    let why = "the kubeconfig has no token, and the agent is stopping";
    DesiredKubeconfig::Missing(Waiting(why.into()))
}

/// Returns why the API server's name cannot be resolved, while its last `address` stays in use.
fn describe_kept_address(address: &ServerAddress) -> Option<String> {
    let ServerAddress { address: Some(_), error: Some(why) } = address else {
        return None;
    };
    Some(format!(
        "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
    ))
}

/// Returns how the agent itself reaches the API server, at `address`, and the text of the plugin's
/// `token`. Fails with the reason why this agent cannot write a kubeconfig yet.
fn own_access_and_token(
    settings: &Settings,
    address: ServerAddress,
    token: &PluginToken,
) -> Result<(ApiAccess, String), Finding> {
    let access = own_access(settings, address)?;
    let plugin_token = token.text.clone()?;
    Ok((access, plugin_token))
}

/// Chooses whose kubeconfig belongs on the host: that of this agent, with `access` and `token`, or
/// that of the other agent whose files stay in use. The kubeconfig of a newer agent stays unless
/// the API server rejects its token.
fn choose_writer(
    api: &ApiHandle,
    kept: Option<OtherAgent>,
    access: ApiAccess,
    token: String,
    observed: &Observed,
) -> DesiredKubeconfig {
    match kept {
        Some(OtherAgent::Upstream) => return DesiredKubeconfig::OfUpstreamAgent,
        Some(OtherAgent::Newer) => {
            if let Some(found) = observed.token()
                && !is_rejected(api, found)
            {
                return DesiredKubeconfig::OfNewerAgent { token: found.to_owned() };
            }
        }
        None => {}
    }
    let text = kubeconfig::render(&ApiAccess { token: Some(token.clone()), ..access });
    DesiredKubeconfig::Own { text, token }
}

/// Returns whether the API server is known to reject `token`, which was found on the host.
fn is_rejected(api: &ApiHandle, token: &str) -> bool {
    let was_written = false;
    matches!(api.token_status(token, was_written).validity, TokenValidity::Rejected(_))
}

/// Returns what is wrong with the token in the kubeconfig on the host, after `decision` was carried
/// out. `was_written` says whether this pass wrote the kubeconfig.
///
/// If the API server is unreachable, that is usually only a warning: the node becomes ready as with
/// upstream's agent, which sends no requests. But if the plugin has a ServiceAccount of its own and
/// the API server has not responded since the start of this agent, the node is not ready.
pub fn check_token(
    settings: &Settings,
    api: &ApiHandle,
    decision: &KubeconfigDecision,
    was_written: bool,
) -> Option<Finding> {
    let has_account = settings.plugin_account.is_some();
    match &decision.desired {
        DesiredKubeconfig::Own { token, .. } | DesiredKubeconfig::OfNewerAgent { token } => {
            let status = api.token_status(token, was_written);
            judge_token(status, has_account, decision.request_error.as_deref())
        }
        DesiredKubeconfig::OfUpstreamAgent => {
            // The token of upstream's agent is not checked.
            if has_account && !api.history().has_responded() {
                return Some(Waiting(NOT_RESPONDED.into()));
            }
            None
        }
        DesiredKubeconfig::OnHost | DesiredKubeconfig::Missing(_) => None,
    }
}

/// Returns what is wrong with a token of this `status`. `has_account` says whether the plugin has a
/// ServiceAccount of its own, and `request_error` why the last TokenRequest failed.
fn judge_token(
    status: TokenStatus,
    has_account: bool,
    request_error: Option<&str>,
) -> Option<Finding> {
    let request_error = match request_error {
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

/// Reads how the agent itself reaches the API server: the address, the CA and the agent's own
/// token. The own token is always needed, because the agent also requests the plugin's token with
/// it. `resolved` is the address to which the API server's name resolves, if the settings have a
/// name. No error contains a credential.
fn own_access(settings: &Settings, resolved: ServerAddress) -> Result<ApiAccess, Finding> {
    let Some(host) = settings.api_host.as_deref() else {
        return Err(Problem("KUBERNETES_SERVICE_HOST is not set".into()));
    };
    let Some(port) = settings.api_port.as_deref() else {
        return Err(Problem("KUBERNETES_SERVICE_PORT is not set".into()));
    };
    let server = match settings.api_name() {
        Some(name) => {
            let address = resolved_address(name, resolved)?;
            kubeconfig::server_url(&address.to_string(), port)
        }
        None => kubeconfig::server_url(host, port),
    };
    let token = read_text(&settings.service_account_dir.join("token")).map_err(Problem)?;
    let ca = read_ca(settings).map_err(Problem)?;
    Ok(ApiAccess {
        server,
        tls_server_name: settings.api_name().map(str::to_owned),
        ca: ca.into_bytes(),
        token: Some(token),
    })
}

/// Returns the address to which the API server's `name` resolves, or resolved last.
fn resolved_address(name: &str, resolved: ServerAddress) -> Result<IpAddr, Finding> {
    if let Some(address) = resolved.address {
        return Ok(address);
    }
    match resolved.error {
        None => Err(Waiting(format!("waiting for the address of the API server {name}"))),
        Some(why) => Err(Problem(format!(
            "cannot resolve the API server's name {name}: {why}; check KUBERNETES_SERVICE_HOST \
             and the DNS of the agent's pod, or set dnsPolicy=Default to use the node's DNS"
        ))),
    }
}

/// Reads the CA certificates of the API server.
fn read_ca(settings: &Settings) -> Result<String, String> {
    let Some(path) = &settings.ca_file else {
        return read_text(&settings.service_account_dir.join("ca.crt"));
    };
    read_text(path).map_err(|why| {
        let path = path.display();
        format!("KUBE_CA_FILE={path}: {why}; set it to a file with CA certificates, or unset it")
    })
}
