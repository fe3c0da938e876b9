//! Reconciles the kubeconfig on the host, and checks that the API server accepts its token.

use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::judge::Finding::{self, Problem, Waiting, Warning};
use super::judge::KubeconfigOutcome;
use crate::agent::api::token::PluginToken;
use crate::agent::contention::ContendedFile;
use crate::agent::credential;
use crate::agent::subject::Subject;
use crate::agent::yielding::OtherAgent;
use crate::kube::kubeconfig::{self, ApiAccess};

impl Reconciler {
    /// Writes the kubeconfig if its content or its access differs. Writes nothing while there
    /// is no token for it, and over that of another agent that stays in use.
    pub(super) fn install_kubeconfig(&mut self, kept: Option<OtherAgent>) -> KubeconfigOutcome {
        let mut outcome = KubeconfigOutcome::default();
        if self.stopping {
            let why = "the kubeconfig has no token, and the agent is stopping";
            let has_token = credential::token_on_host(&self.settings).is_some();
            outcome.missing = (!has_token).then(|| Waiting(why.into()));
            return outcome;
        }
        match self.write_kubeconfig(kept, &mut outcome) {
            Ok(()) => {}
            Err(why @ credential::Error::Unresolved(_)) => {
                outcome.missing = Some(Waiting(why.to_string()));
            }
            Err(error) => outcome.missing = Some(Problem(error.to_string())),
        }
        outcome
    }

    /// Writes the kubeconfig, and records in `outcome` what is known of its token.
    ///
    /// # Errors
    /// If the agent's own token or the CA is missing, or the kubeconfig cannot be read or
    /// written.
    fn write_kubeconfig(
        &mut self,
        kept: Option<OtherAgent>,
        outcome: &mut KubeconfigOutcome,
    ) -> Result<(), credential::Error> {
        let address = self.api.server_address();
        if let (Some(_), Some(why)) = (address.address, &address.error) {
            outcome.server_address = Some(format!(
                "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
            ));
        }
        let own = credential::own_access(&self.settings, address)?;
        let (token, request_error) = self.token(own.token.as_deref().unwrap_or_default());
        outcome.token_request = request_error;
        let token = match token {
            Ok(token) => token,
            Err(missing) => {
                outcome.missing = Some(missing);
                return Ok(());
            }
        };
        if kept == Some(OtherAgent::Newer)
            && let Some(found) = self.accepted_token_on_host()
        {
            self.check_token(&found, false, outcome);
            return Ok(());
        }
        if kept == Some(OtherAgent::Upstream) {
            if self.settings.plugin_account.is_some() && !self.api.history().reached {
                outcome.token = Some(Waiting("the API server has not responded yet".into()));
            }
            return Ok(());
        }
        let desired = kubeconfig::render(&ApiAccess { token: Some(token.clone()), ..own });
        if !credential::is_current(&self.settings, &desired)? {
            self.mark_not_ready(&Subject::Kubeconfig);
            let path = self.settings.node.kubeconfig();
            let file = ContendedFile::Kubeconfig(path.clone());
            // The key is the written content, so that the write of a renewed token is never delayed.
            if let Some(until) = self.contention.blocked_until(&file, &desired, Instant::now()) {
                outcome.progress.schedule_next(until);
                outcome.missing = Some(Problem(file.to_string()));
                return Ok(());
            }
            self.upstream_kubeconfig.before_write(&path, &desired);
            credential::write(&self.settings, &desired)?;
            outcome.progress.wrote = true;
            self.status.metrics.kubeconfig_writes.inc();
            info!("wrote kubeconfig {}", path.display());
            self.record_write(file, &desired);
        }
        self.check_token(&token, outcome.progress.wrote, outcome);
        Ok(())
    }

    /// Returns the token of a newer agent's kubeconfig on the host, unless the API server rejects it.
    fn accepted_token_on_host(&self) -> Option<String> {
        let token = credential::token_on_host(&self.settings)?;
        let rejected = matches!(self.api.token_status(&token, false).result, Some(Err(_)));
        (!rejected).then_some(token)
    }

    /// Returns the token that belongs in the kubeconfig: the token of the plugin's ServiceAccount, or
    /// the token found on the host while none is issued. The agent's own token only if the plugin
    /// has no ServiceAccount of its own. Also returns why the last TokenRequest failed.
    ///
    /// # Errors
    /// Says why there is no such token.
    fn token(&mut self, agent_token: &str) -> (Result<String, Finding>, Option<String>) {
        let account = self.settings.plugin_account.clone().unwrap_or_default();
        match self.api.plugin_token() {
            PluginToken::AgentToken => (Ok(agent_token.to_owned()), None),
            PluginToken::Issued { token, renewal_error } => {
                let error = renewal_error.map(|why| {
                    format!(
                        "the token of ServiceAccount {account} could not be renewed, \
                         so the plugin keeps its last token: {why}"
                    )
                });
                (Ok(token), error)
            }
            PluginToken::Pending { error } => {
                let waiting = format!(
                    "waiting for the API server to issue the token of ServiceAccount {account}"
                );
                let error = error.map(|why| format!("{waiting}: {why}"));
                let on_host = credential::token_on_host(&self.settings);
                self.token_found_on_host = on_host.or(self.token_found_on_host.take());
                let token = self.token_found_on_host.clone().ok_or_else(|| match &error {
                    Some(why) => Problem(why.clone()),
                    None => Waiting(waiting),
                });
                (token, error)
            }
        }
    }

    /// Records in `outcome` whether the API server accepts `token`.
    ///
    /// An unreachable API server makes the node not ready only if the plugin has a ServiceAccount
    /// of its own and the API server has not responded since the agent started. With
    /// upstream's chart it is only a warning: upstream's agent sends no requests, so the node
    /// works even if the agent cannot reach the API server.
    fn check_token(&self, token: &str, written: bool, outcome: &mut KubeconfigOutcome) {
        let status = self.api.token_status(token, written);
        let must_wait = self.settings.plugin_account.is_some() && !status.responded;
        outcome.token = match (status.result, status.error) {
            (Some(Err(why)), _) => Some(Problem(why)),
            (_, None) if must_wait => Some(Waiting("the API server has not responded yet".into())),
            (_, Some(error)) if must_wait => {
                Some(Problem(format!("the API server has not responded yet: {error}")))
            }
            (_, Some(error)) => {
                Some(Warning(format!("cannot check the token in the kubeconfig: {error}")))
            }
            (_, None) => None,
        };
    }
}
