//! Checks whether the API server accepts the token in the kubeconfig on the host.

use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::{Worker, retry_after};
use crate::agent::api::schedule::CheckResult;
use crate::agent::api::{TokenCheck, namespace};
use crate::kube;

impl Worker {
    /// Checks the token in the kubeconfig on the host with a cheap request.
    pub(super) fn check(&mut self) {
        // The reconciler corrects a kubeconfig that cannot be read.
        let client = self.plugin.client().ok();
        let token = self.plugin.token().map(str::to_owned);
        let (Some(client), Some(token), Some(namespace)) =
            (client, token, namespace(&self.api.settings))
        else {
            self.schedule.nothing_to_check(Instant::now());
            return;
        };
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        let response = client.get::<IgnoredAny>(&path);
        self.api.state().history.plugin_token.record(&response, Instant::now());
        match response {
            Ok(_) => self.record_result(token, Ok(())),
            Err(error) => match error.code() {
                Some(404) => self.record_result(token, Ok(())),
                Some(401) => self.record_result(token, Err((401, error))),
                Some(403) => self.record_result(token, Err((403, error))),
                // Unreachable or failing: the result of the last check stays valid.
                _ => self.check_failed(&error),
            },
        }
    }

    /// Records whether the API server accepts the token in the kubeconfig. An error has the HTTP
    /// status, 401 or 403.
    fn record_result(&mut self, token: String, result: Result<(), (u16, kube::Error)>) {
        let now = Instant::now();
        let check_result = match result {
            Ok(()) => CheckResult::Accepted,
            Err(_) => CheckResult::Rejected,
        };
        self.schedule.check_done(now, check_result, Duration::ZERO);
        let is_revoked = matches!(result, Err((401, _)));
        let result = result.map_err(|(code, error)| match code {
            401 => {
                format!("the API server rejected the token in the kubeconfig (HTTP 401): {error}")
            }
            _ => {
                format!("a request with the token in the kubeconfig was denied (HTTP 403): {error}")
            }
        });
        let mut state = self.api.state();
        state.history.reached = true;
        let mut changed = state.check_error.take().is_some();
        let issued = state.token_requests.token.as_mut();
        if let Some(issued) = issued.filter(|issued| issued.text == token) {
            if is_revoked && !issued.revoked {
                self.schedule.revoked(now);
            }
            issued.revoked = is_revoked;
        }
        let before =
            state.last_check.replace(TokenCheck { token: token.clone(), result: result.clone() });
        changed |= before.is_none_or(|before| before.token != token || before.result != result);
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }

    /// Records a check without a usable response.
    fn check_failed(&mut self, error: &kube::Error) {
        self.schedule.check_done(Instant::now(), CheckResult::Unknown, retry_after(error));
        if !error.is_response() {
            self.api.report_unreachable();
        }
        let why = error.to_string();
        let mut state = self.api.state();
        state.history.reached |= error.is_response();
        let before = state.check_error.replace(why.clone());
        drop(state);
        if before.as_ref() != Some(&why) {
            self.api.waker.wake();
        }
    }
}
