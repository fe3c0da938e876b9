//! Chooses the token that belongs in the kubeconfig on the host.

use std::path::Path;
use std::time::Instant;

use super::findings::Finding::{self, Problem, Waiting};
use crate::agent::api_thread::token::TokenRequestResults;
use crate::agent::api_thread::{ApiHandle, FirstInstall};
use crate::agent::settings::Settings;
use crate::files;
use crate::node::observed::Observed;

/// The token that belongs in the kubeconfig.
#[derive(Clone)]
pub struct PluginToken {
    /// The token, or why there is none yet.
    pub text: Result<String, Finding>,
    /// Why the last TokenRequest failed.
    pub request_error: Option<String>,
    /// When the first install of the node no longer has to wait with the token. `None` if it does
    /// not wait.
    pub allowed_at: Option<Instant>,
}

/// Chooses the plugin's token, and remembers the one on the host.
#[derive(Default)]
pub struct TokenSource {
    /// The last token that was found in the kubeconfig on the host. It is used until a new token is
    /// issued.
    found_on_host: Option<String>,
}

impl TokenSource {
    /// Returns the token that was issued for the plugin's ServiceAccount. Until one is issued,
    /// returns the token that was found on the host. An expired or revoked token is returned until
    /// another token replaces it. The first install of a node may have to wait for its token.
    ///
    /// Returns the agent's own token only if the plugin has no ServiceAccount of its own, as with
    /// upstream's chart. Otherwise a process that reads the host's files would get the agent's
    /// permissions. So the agent's own token is not used as a substitute, even if the API server is
    /// unreachable or has denied the TokenRequest, which it may also do while it starts.
    pub fn token(
        &mut self,
        settings: &Settings,
        api: &ApiHandle,
        observed: &Observed,
    ) -> PluginToken {
        let mut first_install = FirstInstall::Possible;
        if observed.is_empty() {
            first_install = api.first_install(Instant::now());
        }
        let allowed_at = match first_install {
            FirstInstall::AwaitsWatch(end) => Some(end),
            FirstInstall::Possible | FirstInstall::Rejected => None,
        };
        let Some(account) = &settings.plugin_account else {
            let text = own_token(settings, first_install);
            return PluginToken { text, request_error: None, allowed_at };
        };
        let TokenRequestResults { token, error } = api.token_requests();
        if let Some(issued) = token {
            let text = check_first_install(first_install).map(|()| issued.text);
            let request_error = error.map(|why| {
                format!(
                    "the token of ServiceAccount {account} could not be renewed, \
                     so the plugin keeps its last token: {why}"
                )
            });
            return PluginToken { text, request_error, allowed_at };
        }
        let why_waiting =
            format!("waiting for the API server to issue the token of ServiceAccount {account}");
        let request_error = error.map(|why| format!("{why_waiting}: {why}"));
        if let Some(token) = observed.token() {
            self.found_on_host = Some(token.to_owned());
        }
        let text = if let Some(token) = &self.found_on_host {
            Ok(token.clone())
        } else if let Some(why) = &request_error {
            Err(Problem(why.clone()))
        } else {
            Err(Waiting(why_waiting))
        };
        PluginToken { text, request_error, allowed_at }
    }
}

/// Returns the agent's own token, for a plugin without a ServiceAccount of its own.
fn own_token(settings: &Settings, first_install: FirstInstall) -> Result<String, Finding> {
    check_first_install(first_install)?;
    read_text(&settings.service_account_dir.join("token")).map_err(Problem)
}

/// Fails with the reason why a node where nothing is installed gets no token yet.
fn check_first_install(first_install: FirstInstall) -> Result<(), Finding> {
    match first_install {
        FirstInstall::Possible => Ok(()),
        FirstInstall::AwaitsWatch(_) => {
            Err(Waiting("the watch of the agent's pod is not open yet".into()))
        }
        FirstInstall::Rejected => {
            Err(Problem("the API server rejected the agent's own token (HTTP 401)".into()))
        }
    }
}

/// Returns the text of the file at `path`, without leading and trailing white space.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let (bytes, _) = files::read(path).map_err(|error| error.to_string())?;
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Err(format!("{} is empty", path.display())),
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(format!("{} is not text", path.display())),
    }
}
