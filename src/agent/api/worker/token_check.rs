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
        let error = response.err();
        match error.as_ref().map(|error| (error, error.code())) {
            None | Some((_, Some(404))) => self.checked(token, Ok(()), false),
            Some((error, Some(401))) => {
                let why = "the API server rejected the token in the kubeconfig (HTTP 401)";
                self.checked(token, Err(format!("{why}: {error}")), true);
            }
            Some((error, Some(403))) => {
                let why = "a request with the token in the kubeconfig was denied (HTTP 403)";
                self.checked(token, Err(format!("{why}: {error}")), false);
            }
            // Unreachable or failing: the result of the last check stays valid.
            Some((error, _)) => self.check_failed(error),
        }
    }

    /// Records whether the API server accepts the token in the kubeconfig.
    fn checked(&mut self, token: String, result: Result<(), String>, is_revoked: bool) {
        let now = Instant::now();
        let check_result = match result {
            Ok(()) => CheckResult::Accepted,
            Err(_) => CheckResult::Rejected,
        };
        self.schedule.check_done(now, check_result, Duration::ZERO);
        let mut state = self.api.state();
        state.history.reached = true;
        let issued = state.token_requests.token.as_mut();
        if let Some(issued) = issued.filter(|issued| issued.text == token) {
            if is_revoked && !issued.revoked {
                self.schedule.revoked(now);
            }
            issued.revoked = is_revoked;
        }
        let check = Some(TokenCheck { token, result });
        let changed = state.check_error.take().is_some() || state.last_check != check;
        state.last_check = check;
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }

    /// Records a check without a usable response.
    fn check_failed(&mut self, error: &kube::Error) {
        self.schedule.check_done(Instant::now(), CheckResult::Unknown, retry_after(error));
        if !error.is_response() {
            self.unreachable_reported();
        }
        let why = Some(error.to_string());
        let mut state = self.api.state();
        state.history.reached |= error.is_response();
        let changed = state.check_error != why;
        state.check_error = why;
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }
}
