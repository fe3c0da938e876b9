//! Reconciles the kubeconfig on the host, and checks that the API server accepts its token.

use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::judge::Finding::{self, Problem, Waiting, Warning};
use crate::agent::api::token::TokenRequestResults;
use crate::agent::contention::ContendedFile;
use crate::agent::credential;
use crate::agent::subject::Subject;
use crate::agent::yielding::OtherAgent;
use crate::kube::kubeconfig::{self, ApiAccess};

impl Reconciler {
    /// Writes the kubeconfig if its content or its access differs, and judges its token. Writes
    /// nothing while there is no token for it, and over that of another agent that stays in use.
    pub(super) fn install_kubeconfig(&mut self, kept: Option<OtherAgent>) -> Result<(), Finding> {
        if self.stopping {
            let why = "the kubeconfig has no token, and the agent is stopping";
            let token = credential::token_on_host(&self.settings);
            return token.map(|_| ()).ok_or_else(|| Waiting(why.into()));
        }
        let address = self.api.server_address();
        if let (Some(_), Some(why)) = (address.address, &address.error) {
            let why = format!(
                "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
            );
            self.pass.add(Subject::ServerAddress, Warning(why));
        }
        let own = credential::own_access(&self.settings, address)?;
        let (token, request_error) = self.token(own.token.as_deref().unwrap_or_default());
        self.status.metrics.token_request_failed.set(request_error.is_some().into());
        let token = token?;
        self.pass.notes.extend(request_error.clone());
        self.pass.add(Subject::TokenRequest, request_error.clone().map(Warning));
        if kept == Some(OtherAgent::Newer)
            && let Some(found) = self.accepted_token_on_host()
        {
            self.check_token(&found, false, request_error);
            return Ok(());
        }
        if kept == Some(OtherAgent::Upstream) {
            if self.settings.plugin_account.is_some() && !self.api.history().reached {
                let why = "the API server has not responded yet";
                self.pass.add(Subject::KubeconfigToken, Waiting(why.into()));
            }
            return Ok(());
        }
        let desired = kubeconfig::render(&ApiAccess { token: Some(token.clone()), ..own });
        let is_current = credential::is_current(&self.settings, &desired)?;
        if !is_current {
            self.mark_not_ready(&Subject::Kubeconfig);
            let path = self.settings.node.kubeconfig();
            let file = ContendedFile { subject: Subject::Kubeconfig, path: path.clone() };
            // The key is the written content, so that the write of a renewed token is never delayed.
            if let Some(until) = self.contention.blocked_until(&file, &desired, Instant::now()) {
                self.pass.schedule_next(until);
                return Err(Problem(file.to_string()));
            }
            self.upstream_kubeconfig.before_write(&path, &desired);
            credential::write(&self.settings, &desired)?;
            self.pass.wrote = true;
            self.status.metrics.kubeconfig_writes.inc();
            info!("wrote kubeconfig {}", path.display());
            self.record_write(file, &desired);
        }
        self.check_token(&token, !is_current, request_error);
        Ok(())
    }

    /// Returns the token of a newer agent's kubeconfig on the host, unless the API server rejects it.
    fn accepted_token_on_host(&self) -> Option<String> {
        let token = credential::token_on_host(&self.settings)?;
        let rejected = matches!(self.api.token_status(&token, false).result, Some(Err(_)));
        (!rejected).then_some(token)
    }

    /// Returns the token that belongs in the kubeconfig: the token of the plugin's ServiceAccount, or
    /// the token found on the host while none is issued. An expired or revoked token stays until
    /// another token replaces it. Also returns why the last TokenRequest failed.
    ///
    /// The agent's own token only if the plugin has no ServiceAccount of its own, as in upstream's
    /// chart: a process that reads the host's files must not get the agent's permissions. Neither an
    /// outage nor a denied TokenRequest changes that. A proxy or an API server that is starting denies
    /// requests too.
    fn token(&mut self, agent_token: &str) -> (Result<String, Finding>, Option<String>) {
        let Some(account) = &self.settings.plugin_account else {
            return (Ok(agent_token.to_owned()), None);
        };
        let TokenRequestResults { token, error } = self.api.token_requests();
        if let Some(issued) = token {
            let error = error.map(|why| {
                format!(
                    "the token of ServiceAccount {account} could not be renewed, \
                     so the plugin keeps its last token: {why}"
                )
            });
            return (Ok(issued.text), error);
        }
        let waiting =
            format!("waiting for the API server to issue the token of ServiceAccount {account}");
        let error = error.map(|why| format!("{waiting}: {why}"));
        let on_host = credential::token_on_host(&self.settings);
        self.token_found_on_host = on_host.or(self.token_found_on_host.take());
        let missing = || error.clone().map_or(Waiting(waiting), Problem);
        (self.token_found_on_host.clone().ok_or_else(missing), error)
    }

    /// Records whether the API server accepts `token`. `request_error` says why the last TokenRequest
    /// failed.
    ///
    /// An unreachable API server makes the node not ready only if the plugin has a ServiceAccount
    /// of its own and the API server has not responded since the agent started. With
    /// upstream's chart it is only a warning: upstream's agent sends no requests, so the node
    /// works even if the agent cannot reach the API server.
    fn check_token(&mut self, token: &str, written: bool, request_error: Option<String>) {
        let status = self.api.token_status(token, written);
        let must_wait = self.settings.plugin_account.is_some() && !status.responded;
        let not_responded = "the API server has not responded yet";
        let problem = |why: String| match &request_error {
            Some(request) => Problem(format!("{why}; {request}")),
            None => Problem(why),
        };
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

impl From<credential::Error> for Finding {
    fn from(why: credential::Error) -> Finding {
        match why {
            credential::Error::Unresolved(_) => Waiting(why.to_string()),
            _ => Problem(why.to_string()),
        }
    }
}
