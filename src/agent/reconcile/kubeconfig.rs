//! The kubeconfig on the host, and what the API server says to its token.

use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::pass::{CREDENTIAL, KUBECONFIG, PLUGIN_TOKEN, Pass};
use crate::agent::api::token::PluginToken;
use crate::agent::credential;
use crate::agent::status::Status;

impl Reconciler {
    pub(super) fn keep_kubeconfig(&mut self, pass: &mut Pass) -> Result<(), credential::Error> {
        let base = credential::kubeconfig_base(&self.settings)?;
        let Some(token) = self.token(&base.agents_token, pass) else {
            return Ok(());
        };
        let desired = base.render(&token);
        let mut written = false;
        if !credential::is_right(&self.settings, &desired)? {
            self.repairs(KUBECONFIG);
            if self.is_held(KUBECONFIG, &self.settings.kubeconfig(), &desired, pass) {
                return Ok(());
            }
            self.handover
                .overwrites(&self.settings.kubeconfig(), &desired);
            credential::write(&self.settings, &desired)?;
            written = true;
            pass.wrote = true;
            Status::count(&self.status.kubeconfig_writes);
            info!("Wrote kubeconfig {}", self.settings.kubeconfig().display());
            self.rivals.wrote(KUBECONFIG, &desired, Instant::now());
        }
        self.check_token(&token, written, pass);
        Ok(())
    }

    /// The token that the kubeconfig should carry; `None` while there is none to write.
    fn token(&mut self, agents: &str, pass: &mut Pass) -> Option<String> {
        let account = self.settings.plugin_account.clone().unwrap_or_default();
        match self.api.plugin_token() {
            PluginToken::Agents { denied } => {
                if let Some(why) = denied {
                    let why = format!("the plugin uses the agent's own token: {why}");
                    pass.doubts.insert(PLUGIN_TOKEN.to_owned(), why.clone());
                    pass.remark = Some(why);
                }
                pass.agents_token = true;
                Some(agents.to_owned())
            }
            PluginToken::Issued { token, doubt } => {
                if let Some(why) = doubt {
                    let why = format!(
                        "the token of service account {account} is not renewed, \
                         the plugin keeps the last one: {why}"
                    );
                    pass.doubts.insert(PLUGIN_TOKEN.to_owned(), why);
                }
                Some(token)
            }
            PluginToken::Awaited { error } => {
                let on_host = credential::token_on_host(&self.settings);
                self.kept_token = on_host.or(self.kept_token.take());
                let error = error.map(|error| format!(": {error}"));
                let why = format!(
                    "waiting for the API server to issue a token for service account {account}{}",
                    error.as_deref().unwrap_or_default()
                );
                match (&self.kept_token, error) {
                    (Some(_), None) => {}
                    (Some(_), Some(_)) => {
                        pass.doubts.insert(PLUGIN_TOKEN.to_owned(), why);
                    }
                    (None, None) => pass.wait_for(KUBECONFIG, why),
                    (None, Some(_)) => pass.problem(KUBECONFIG, why),
                }
                self.kept_token.clone()
            }
        }
    }

    /// Whether the API server accepts `token`. With upstream's chart, whose agent sends no
    /// requests, the API server may be out of the agent's reach; the agent does not wait for it.
    fn check_token(&self, token: &str, written: bool, pass: &mut Pass) {
        let status = self.api.token_status(token, written);
        let waits = self.settings.plugin_account.is_some() && !status.answered;
        let error = status.error.as_deref();
        match (status.answer, error) {
            (Some(Err(why)), _) => pass.problem(CREDENTIAL, why),
            (_, None) if waits => pass.wait_for(CREDENTIAL, "the API server has not answered yet"),
            (_, Some(error)) if waits => {
                let why = format!("the API server has not answered yet: {error}");
                pass.problem(CREDENTIAL, why);
            }
            (_, Some(error)) => {
                let why = format!("cannot check the token in the kubeconfig: {error}");
                pass.doubts.insert(CREDENTIAL.to_owned(), why);
            }
            (_, None) => {}
        }
    }
}
