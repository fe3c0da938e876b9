//! Reconciles the kubeconfig on the host, and checks that the API server accepts its token.

use std::fs::Metadata;
use std::path::Path;
use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::findings::Finding::{self, Problem, Waiting, Warning};
use crate::agent::api::FirstInstall;
use crate::agent::api::server_address::ServerAddress;
use crate::agent::api::token::TokenRequestResults;
use crate::agent::contention::ContendedFile;
use crate::agent::settings::Settings;
use crate::agent::subject::Subject;
use crate::agent::yielding::OtherAgent;
use crate::files::{self, FileAccess};
use crate::kube::kubeconfig::{self, ApiAccess};

/// File mode of the kubeconfig: it contains a token, so only root may read it.
const MODE: u32 = 0o600;

/// The token that belongs in the kubeconfig.
#[derive(Clone)]
pub(super) struct PluginToken {
    /// The token, or why there is none yet.
    pub text: Result<String, Finding>,
    /// Why the last TokenRequest failed.
    request_error: Option<String>,
}

impl Reconciler {
    /// Writes the kubeconfig if its content or its access differs, and judges its token. Writes
    /// nothing while there is no token for it, and over that of another agent that stays in use.
    pub(super) fn install_kubeconfig(
        &mut self,
        kept: Option<OtherAgent>,
        token: &PluginToken,
    ) -> Result<(), Finding> {
        // The decision to uninstall needs this token: the agent's own token ends with its pod.
        if self.status.state().stopped_by.is_some() {
            let why = "the kubeconfig has no token, and the agent is stopping";
            let token = token_on_host(&self.settings);
            return token.map(|_| ()).ok_or_else(|| Waiting(why.into()));
        }
        let address = self.api.server_address();
        if let (Some(_), Some(why)) = (address.address, &address.error) {
            let why = format!(
                "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
            );
            self.pass.add(Subject::ServerAddress, Warning(why));
        }
        let own = own_access(&self.settings, address)?;
        let PluginToken { text: token, request_error } = token.clone();
        self.status.metrics.token_request_failed.set(request_error.is_some().into());
        let token = token?;
        self.pass.notes.extend(request_error.clone());
        self.pass.add(Subject::TokenRequest, request_error.clone().map(Warning));
        if kept == Some(OtherAgent::Newer)
            && let Some(found) = token_on_host(&self.settings)
            && !matches!(self.api.token_status(&found, false).result, Some(Err(_)))
        {
            self.check_token(&found, false, request_error);
            return Ok(());
        }
        if kept == Some(OtherAgent::Upstream) {
            if self.settings.plugin_account.is_some() && !self.api.history().has_responded() {
                let why = "the API server has not responded yet";
                self.pass.add(Subject::KubeconfigToken, Waiting(why.into()));
            }
            return Ok(());
        }
        let desired = kubeconfig::render(&ApiAccess { token: Some(token.clone()), ..own });
        let path = self.settings.node.kubeconfig();
        let problem = |error: files::Error| Problem(error.to_string());
        let is_current = is_current(&path, &desired).map_err(problem)?;
        if !is_current {
            let file = ContendedFile { subject: Subject::Kubeconfig, path: path.clone() };
            // The key is the written content, so that the write of a renewed token is never
            // delayed.
            self.begin_write(&file, &desired).map_err(Problem)?;
            self.upstream_kubeconfig.before_write(&path, &desired);
            files::write(&path, desired.as_bytes(), FileAccess::own(MODE)).map_err(problem)?;
            self.status.metrics.kubeconfig_writes.inc();
            info!("wrote kubeconfig {}", path.display());
            self.end_write(file, &desired);
        }
        self.check_token(&token, !is_current, request_error);
        Ok(())
    }

    /// Returns the token that belongs in the kubeconfig: the token of the plugin's ServiceAccount,
    /// or the token found on the host while none is issued. An expired or revoked token stays until
    /// another token replaces it. `is_empty`: nothing is installed on the node, so that the first
    /// install may have to wait.
    ///
    /// The agent's own token only if the plugin has no ServiceAccount of its own, as in upstream's
    /// chart: a process that reads the host's files must not get the agent's permissions. Neither
    /// an outage nor a denied TokenRequest changes that: a starting API server denies requests,
    /// too.
    pub(super) fn plugin_token(&mut self, is_empty: bool) -> PluginToken {
        let first_install = if is_empty { self.await_first_install() } else { Ok(()) };
        let Some(account) = &self.settings.plugin_account else {
            let own = content(&self.settings.service_account_dir.join("token")).map_err(Problem);
            return PluginToken { text: first_install.and(own), request_error: None };
        };
        let TokenRequestResults { token, error } = self.api.token_requests();
        if let Some(issued) = token {
            let request_error = error.map(|why| {
                format!(
                    "the token of ServiceAccount {account} could not be renewed, \
                     so the plugin keeps its last token: {why}"
                )
            });
            return PluginToken { text: first_install.map(|()| issued.text), request_error };
        }
        let waiting =
            format!("waiting for the API server to issue the token of ServiceAccount {account}");
        let request_error = error.map(|why| format!("{waiting}: {why}"));
        let on_host = token_on_host(&self.settings);
        self.token_found_on_host = on_host.or(self.token_found_on_host.take());
        let missing = || request_error.clone().map_or(Waiting(waiting), Problem);
        let text = self.token_found_on_host.clone().ok_or_else(missing);
        PluginToken { text, request_error }
    }

    /// Returns why a node where nothing is installed gets no token yet.
    fn await_first_install(&mut self) -> Result<(), Finding> {
        match self.api.first_install(Instant::now()) {
            FirstInstall::Possible => Ok(()),
            FirstInstall::AwaitsWatch(end) => {
                self.pass.schedule_next(end);
                Err(Waiting("the watch of the agent's pod is not open yet".into()))
            }
            FirstInstall::Rejected => {
                Err(Problem("the API server rejected the agent's own token (HTTP 401)".into()))
            }
        }
    }

    /// Records whether the API server accepts `token`. An unreachable API server is only a warning,
    /// as upstream's agent sends no requests. The exception: the plugin has a ServiceAccount of its
    /// own, and the API server has not responded since the start. Then the node is not ready.
    fn check_token(&mut self, token: &str, written: bool, request_error: Option<String>) {
        let status = self.api.token_status(token, written);
        let must_wait = self.settings.plugin_account.is_some() && !status.responded;
        let not_responded = "the API server has not responded yet";
        let request_error = request_error.map(|why| format!("; {why}")).unwrap_or_default();
        let problem = |why: String| Problem(format!("{why}{request_error}"));
        let finding = match (status.result, status.error) {
            (Some(Err(why)), _) => Some(problem(why)),
            (_, None) if must_wait => Some(Waiting(not_responded.into())),
            (_, Some(error)) if must_wait => Some(problem(format!("{not_responded}: {error}"))),
            (_, Some(error)) => {
                Some(Warning(format!("cannot check the token in the kubeconfig: {error}")))
            }
            (_, None) => None,
        };
        self.pass.add(Subject::KubeconfigToken, finding);
    }
}

/// Reads the API server's address, the CA and the agent's own token, with which the agent also
/// requests the token of a plugin's ServiceAccount. `resolved` is the address if the settings have
/// a host name. No error contains a credential.
fn own_access(settings: &Settings, resolved: ServerAddress) -> Result<ApiAccess, Finding> {
    let unset = |name| Problem(format!("{name} is not set"));
    let host = settings.api_host.as_deref().ok_or_else(|| unset("KUBERNETES_SERVICE_HOST"))?;
    let port = settings.api_port.as_deref().ok_or_else(|| unset("KUBERNETES_SERVICE_PORT"))?;
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

fn content(path: &Path) -> Result<String, String> {
    let (bytes, _) = files::read(path).map_err(|error| error.to_string())?;
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Err(format!("{} is empty", path.display())),
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(format!("{} is not text", path.display())),
    }
}

/// Whether the kubeconfig on the host has a host name, like upstream's: the plugin resolves none.
pub(super) fn needs_resolver(settings: &Settings) -> bool {
    kubeconfig::read(&settings.node.kubeconfig()).is_ok_and(|access| access.address().is_none())
}

/// Returns the token in the kubeconfig on the host: of any ServiceAccount, perhaps expired.
pub(super) fn token_on_host(settings: &Settings) -> Option<String> {
    let token = kubeconfig::read(&settings.node.kubeconfig()).ok()?.token?;
    Some(token).filter(|token| !token.is_empty())
}

fn is_current(path: &Path, desired: &str) -> Result<bool, files::Error> {
    let has_form = |file: &Metadata| {
        file.is_file() && FileAccess::from_metadata(file) == FileAccess::own(MODE)
    };
    let has_content = || files::read(path).is_ok_and(|(bytes, _)| bytes == desired.as_bytes());
    Ok(files::metadata(path)?.as_ref().is_some_and(has_form) && has_content())
}
