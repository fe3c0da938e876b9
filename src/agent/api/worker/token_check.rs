//! Checks whether the API server accepts the token in the kubeconfig on the host.

use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::{Worker, retry_after};
use crate::agent::api::schedule::CheckResult;
use crate::agent::api::{TokenCheck, namespace};
use crate::kube;

impl Worker {
    /// Checks the token in the kubeconfig on the host with a cheap request. Wakes the reconciler if the
    /// result is new.
    pub(super) fn check(&mut self) {
        // The reconciler corrects a kubeconfig that cannot be read.
        let client = self.plugin.client().ok();
        let token = self.plugin.token().map(str::to_owned);
        let (Some(client), Some(token), Some(namespace)) =
            (client, token, namespace(&self.api.settings))
        else {
            self.api.state().schedule.nothing_to_check(Instant::now());
            return;
        };
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        let response = client.get::<IgnoredAny>(&path);
        let now = Instant::now();
        self.api.state().history.plugin_token.record(&response, now);
        let error = response.err();
        let code = error.as_ref().and_then(kube::Error::code);
        let rejection = match (&error, code) {
            (None, _) | (_, Some(404)) => Ok(()),
            (Some(error), Some(401)) => Err(format!(
                "the API server rejected the token in the kubeconfig (HTTP 401): {error}"
            )),
            (Some(error), Some(403)) => Err(format!(
                "a request with the token in the kubeconfig was denied (HTTP 403): {error}"
            )),
            // Unreachable or failing: the result of the last check stays valid.
            (Some(error), _) => return self.check_failed(error),
        };
        let result = if rejection.is_ok() { CheckResult::Accepted } else { CheckResult::Rejected };
        let mut guard = self.api.state();
        let state = &mut *guard;
        state.schedule.check_done(now, result, Duration::ZERO);
        state.history.reached = true;
        let issued = state.token_requests.token.as_mut();
        if let Some(issued) = issued.filter(|issued| issued.text == token) {
            let is_revoked = code == Some(401);
            if is_revoked && !issued.revoked {
                state.schedule.revoked(now);
            }
            issued.revoked = is_revoked;
        }
        let check = Some(TokenCheck { token, result: rejection });
        if state.check_error.take().is_some() || state.last_check != check {
            self.api.waker.wake();
        }
        state.last_check = check;
    }

    /// Records a check without a usable response.
    fn check_failed(&mut self, error: &kube::Error) {
        let mut state = self.api.state();
        state.schedule.check_done(Instant::now(), CheckResult::Unknown, retry_after(error));
        if !error.is_response() {
            state.unreachable_reported();
        }
        state.history.reached |= error.is_response();
        let why = Some(error.to_string());
        if state.check_error != why {
            self.api.waker.wake();
        }
        state.check_error = why;
    }
}
