//! Decodes the claims of a ServiceAccount token.
//!
//! The signature is not verified, because no decision here needs it: the claims only tell when to
//! renew a token, which UID an Event names, and which pods are the agent's. Whether a token is
//! valid is decided by the API server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// The user name: `system:serviceaccount:<namespace>:<name>`.
    sub: String,
    /// When the token expires, in seconds since 1970. 0: never.
    exp: u64,
    /// When the token was issued, in seconds since 1970.
    iat: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Value,
}

impl Claims {
    /// Decodes the claims. `None`: the token is not a JSON web token.
    pub fn read(token: &str) -> Option<Claims> {
        let payload = token.split('.').nth(1)?;
        let json = BASE64URL.decode(payload).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// Returns namespace and name of the ServiceAccount.
    pub fn account(&self) -> Option<(&str, &str)> {
        self.sub.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// Returns name and UID of the pod to which the token is bound. `None` if the token is bound to
    /// no pod.
    pub fn pod(&self) -> Option<(&str, &str)> {
        let pod = &self.kubernetes["pod"];
        pod["name"].as_str().zip(pod["uid"].as_str())
    }

    /// Returns when the token expires. `None` for a token that never expires, such as one from a
    /// Secret.
    pub fn expiry(&self) -> Option<SystemTime> {
        if self.exp == 0 {
            return None;
        }
        UNIX_EPOCH.checked_add(Duration::from_secs(self.exp))
    }

    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expiry().is_some_and(|expiry| expiry <= now)
    }

    /// Returns the time until this percentage of the token's lifetime has passed. `None` once the
    /// token has expired. The time is at most that part of the lifetime: a node whose clock is
    /// behind the API server's must not wait longer than other nodes.
    pub fn until_percent_of_lifetime(&self, percent: u32, now: SystemTime) -> Option<Duration> {
        let now_seconds = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        if now_seconds >= self.exp {
            return None;
        }
        let lifetime = self.exp.checked_sub(self.iat)?;
        let part = (u128::from(lifetime) * u128::from(percent) / 100) as u64;
        let end_of_part = self.iat.saturating_add(part);
        let remaining = end_of_part.saturating_sub(now_seconds);
        Some(Duration::from_secs(remaining.min(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL.encode(payload))
    }

    #[test]
    fn claims_name_the_account_and_the_time_until_a_renewal() {
        let payload = r#"{"sub":"system:serviceaccount:ns:a","iat":1000,"exp":2000,
            "kubernetes.io":{"namespace":"ns","pod":{"name":"p","uid":"u"}},"aud":["x"]}"#;
        let claims = Claims::read(&token(payload)).unwrap();
        assert_eq!(claims.account(), Some(("ns", "a")));
        assert_eq!(claims.pod(), Some(("p", "u")));
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (now, left) in
            [(10, Some(500)), (1000, Some(500)), (1400, Some(100)), (1999, Some(0)), (2000, None)]
        {
            let left = left.map(Duration::from_secs);
            assert_eq!(claims.until_percent_of_lifetime(50, at(now)), left);
        }
    }

    #[test]
    fn claims_are_missing_if_the_text_is_not_a_json_web_token() {
        for text in ["", "opaque", "a.b.c", "e30.!.c"] {
            assert!(Claims::read(text).is_none(), "{text}");
        }
        let without_expiry = Claims::read(&token("{}")).unwrap();
        assert_eq!(without_expiry.until_percent_of_lifetime(50, SystemTime::now()), None);
        assert!(!without_expiry.has_expired(SystemTime::now()));
        let ending = Claims::read(&token(r#"{"exp":2000}"#)).unwrap();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(!ending.has_expired(at(1999)) && ending.has_expired(at(2000)));
    }
}
