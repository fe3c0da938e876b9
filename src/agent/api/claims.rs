//! What a ServiceAccount's token says about itself. Pure, and nothing is verified: it
//! only saves asking for a new token where the old one is good.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use serde::Deserialize;

/// The payload of the token, as far as it matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// `system:serviceaccount:<namespace>:<name>`
    pub sub: String,
    /// When the token ends and when it began, in seconds since 1970.
    exp: u64,
    iat: u64,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Kubernetes,
}

/// Whom the token was given to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    pub namespace: String,
    pub pod: Object,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Object {
    pub name: String,
    pub uid: String,
}

impl Claims {
    /// Reads `token`, if it is a JSON web token.
    pub fn read(token: &str) -> Option<Claims> {
        let payload = token.split('.').nth(1)?;
        serde_json::from_slice(&BASE64URL.decode(payload).ok()?).ok()
    }

    /// When the token ends.
    pub fn end(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.exp))
    }

    /// Whether the token ended before `now`. A token of a Secret, which never ends, names no end.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.exp != 0 && self.end().is_some_and(|end| end <= now)
    }

    /// Time until half of the token's life is over; `None` once all of it is. Never longer than
    /// that half, also if the node's clock is behind the API server's.
    pub fn until_half_life(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let half = self.exp.checked_sub(self.iat)? / 2;
        let left = (self.iat + half).saturating_sub(now).min(half);
        (now < self.exp).then(|| Duration::from_secs(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL.encode(payload))
    }

    #[test]
    fn a_token_says_whose_it_is_and_when_it_is_to_be_renewed() {
        let payload = r#"{"sub":"system:serviceaccount:ns:a","iat":1000,"exp":2000,
            "kubernetes.io":{"namespace":"ns","pod":{"name":"p","uid":"u"}},"aud":["x"]}"#;
        let claims = Claims::read(&token(payload)).unwrap();
        assert_eq!(claims.sub, "system:serviceaccount:ns:a");
        assert_eq!(claims.kubernetes.pod.uid, "u");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (now, left) in [
            (10, Some(500)),
            (1000, Some(500)),
            (1400, Some(100)),
            (1999, Some(0)),
            (2000, None),
        ] {
            assert_eq!(
                claims.until_half_life(at(now)),
                left.map(Duration::from_secs)
            );
        }
    }

    #[test]
    fn what_is_no_such_token_says_nothing() {
        for text in ["", "opaque", "a.b.c", "e30.!.c"] {
            assert!(Claims::read(text).is_none(), "{text}");
        }
        let endless = Claims::read(&token("{}")).unwrap();
        assert_eq!(endless.until_half_life(SystemTime::now()), None);
        assert!(!endless.has_expired(SystemTime::now()));
        let ending = Claims::read(&token(r#"{"exp":2000}"#)).unwrap();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(!ending.has_expired(at(1999)) && ending.has_expired(at(2000)));
    }
}
