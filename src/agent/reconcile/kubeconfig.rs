//! Reconciles the kubeconfig on the host, and checks that the API server accepts its token.

use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::pass_result::PassResult;
use crate::agent::api::claims::Claims;
use crate::agent::api::token::PluginToken;
use crate::agent::credential;
use crate::agent::subject::Subject;

impl Reconciler {
    /// Writes the kubeconfig if its content or its access differs. Writes nothing while there
    /// is no token for it.
    ///
    /// # Errors
    /// If the agent's own token or the CA is missing, or the kubeconfig cannot be read or
    /// written.
    pub(super) fn reconcile_kubeconfig(
        &mut self,
        pass: &mut PassResult,
    ) -> Result<(), credential::Error> {
        if self.stopping {
            if credential::token_on_host(&self.settings).is_none() {
                let why = "the kubeconfig has no token, and the agent is stopping";
                pass.wait_for(Subject::Kubeconfig, why);
            }
            return Ok(());
        }
        let address = self.api.server_address();
        if let (Some(_), Some(why)) = (address.address, &address.error) {
            let why = format!(
                "the API server's name cannot be resolved, so the plugin keeps its last address: {why}"
            );
            pass.warn(Subject::ServerAddress, why);
        }
        let base = match credential::kubeconfig_base(&self.settings, address) {
            Err(why @ credential::Error::Unresolved(_)) => {
                pass.wait_for(Subject::Kubeconfig, why);
                return Ok(());
            }
            base => base?,
        };
        let Some(token) = self.token(&base.agent_token, pass) else {
            return Ok(());
        };
        if pass.newer_agent_runs
            && let Some(found) = self.accepted_token_on_host()
        {
            self.check_token(&found, false, pass);
            return Ok(());
        }
        if pass.keeps_upstream_files {
            if self.settings.plugin_account.is_some() && !self.api.history().reached {
                pass.wait_for(Subject::KubeconfigToken, "the API server has not responded yet");
            }
            return Ok(());
        }
        let desired = base.render(&token);
        let mut written = false;
        if !credential::is_current(&self.settings, &desired)? {
            self.mark_not_ready(&Subject::Kubeconfig);
            let path = self.settings.kubeconfig();
            if self.is_write_delayed(Subject::Kubeconfig, &path, &desired, pass) {
                return Ok(());
            }
            self.upstream_kubeconfig.before_write(&path, &desired);
            credential::write(&self.settings, &desired)?;
            written = true;
            pass.wrote = true;
            self.status.metrics.kubeconfig_writes.inc();
            info!("wrote kubeconfig {}", path.display());
            // The key is the written content, so that the write of a renewed token is never delayed.
            if self.overwrites.record_write(Subject::Kubeconfig, &desired, Instant::now()) {
                self.status.metrics.contentions.inc();
                self.post_overwrite_event(&path);
            }
        }
        self.check_token(&token, written, pass);
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
    /// has no ServiceAccount of its own. Returns `None` while there is no such token.
    fn token(&mut self, agent_token: &str, pass: &mut PassResult) -> Option<String> {
        let account = self.settings.plugin_account.clone().unwrap_or_default();
        match self.api.plugin_token() {
            PluginToken::AgentToken => Some(agent_token.to_owned()),
            PluginToken::Issued { token, renewal_error } => {
                if let Some(why) = renewal_error {
                    let why = format!(
                        "the token of ServiceAccount {account} could not be renewed, \
                         so the plugin keeps its last token: {why}"
                    );
                    pass.token_request_failed(why);
                }
                Some(token)
            }
            PluginToken::Pending { error } => {
                let on_host = credential::token_on_host(&self.settings);
                self.token_found_on_host = on_host.or(self.token_found_on_host.take());
                let waiting = format!(
                    "waiting for the API server to issue the token of ServiceAccount {account}"
                );
                match (&self.token_found_on_host, error) {
                    (Some(_), None) => {}
                    (None, None) => pass.wait_for(Subject::Kubeconfig, waiting),
                    (found, Some(error)) => {
                        let why = format!("{waiting}: {error}");
                        if found.is_none() {
                            pass.problem(Subject::Kubeconfig, &why);
                        }
                        pass.token_request_failed(why);
                    }
                }
                self.token_found_on_host.clone()
            }
        }
    }

    /// Records in `pass` whether the API server accepts `token`.
    ///
    /// An unreachable API server makes the node not ready only if the plugin has a ServiceAccount
    /// of its own and the API server has not responded since the agent started. With
    /// upstream's chart it is only a warning: upstream's agent sends no requests, so the node
    /// works even if the agent cannot reach the API server.
    fn check_token(&self, token: &str, written: bool, pass: &mut PassResult) {
        pass.token_expires = Claims::read(token).and_then(|claims| claims.expiry());
        let status = self.api.token_status(token, written);
        let must_wait = self.settings.plugin_account.is_some() && !status.responded;
        let error = status.error.as_deref();
        match (status.result, error) {
            (Some(Err(why)), _) => {
                let request = pass.warnings.get(&Subject::TokenRequest);
                let request = request.map(|why| format!("; {why}")).unwrap_or_default();
                pass.problem(Subject::KubeconfigToken, why + &request);
            }
            (_, None) if must_wait => {
                pass.wait_for(Subject::KubeconfigToken, "the API server has not responded yet")
            }
            (_, Some(error)) if must_wait => {
                let why = format!("the API server has not responded yet: {error}");
                pass.problem(Subject::KubeconfigToken, why);
            }
            (_, Some(error)) => {
                let why = format!("cannot check the token in the kubeconfig: {error}");
                pass.warn(Subject::KubeconfigToken, why);
            }
            (_, None) => {}
        }
    }
}
