//! The plugin's token: revoked, expired, or not valid yet.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use testkit::cluster::agent::{self, KUBECONFIG, Paused, token, with_token};
use testkit::cluster::api;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::kubectl::run_with_stdin;
use testkit::cluster::node::{COPY, replace};

use crate::outages::{self, Cause};
use crate::world::{World, make_immutable};

const ACCOUNT: &str = "linkerd-cni-plugin";
const KEY: &str = "/var/lib/linkerd2-cni-cluster/pki/tokens.key";

/// Revokes the plugin's token, and waits for the agent to replace the token. The agent learns of
/// the rejection from a plugin that sends a request. So the node's copy is made immutable
/// meanwhile, because a plugin sends no request for a pod that is in the copy.
pub fn revoke(world: &mut World) {
    let old = token();
    let outage = outages::open(Cause::Credential);
    let immutable = make_immutable(COPY.into());
    agent::revoke_token();
    let begin = Instant::now();
    world.wait_for_recovery_and(begin, || {
        let current = token();
        current.is_some() && current != old
    });
    drop(immutable);
    drop(outage);
}

/// When a token is valid, in seconds from now.
pub type Validity = std::ops::Range<i64>;
/// Validity that the agent finds after the clock was moved ahead, or after the node was asleep.
pub const EXPIRED: Validity = -7200..-3600;
/// Validity that the agent finds after the clock was moved back.
pub const NOT_YET_VALID: Validity = 3600..90_000;

/// Replaces the plugin's token by one with this validity, kills the agent, and waits for the next
/// agent to replace the token. The token is changed instead of the clock, because the clock belongs
/// to the whole machine, also to other namespaces.
pub fn replace_with_invalid(world: &World, validity: Validity) {
    let old = agent::agent();
    let invalid = signed_token(validity);
    let outage = outages::open(Cause::Credential);
    // The agent is stopped first, because a running agent would replace the foreign token at once.
    let stopped = Paused::process(old.pid);
    let kubeconfig = fs::read_to_string(KUBECONFIG).expect("there is a kubeconfig");
    replace(Path::new(KUBECONFIG), "soak", with_token(&kubeconfig, &invalid), 0o600);
    let _ = kill(old.pid, Signal::SIGKILL);
    drop(stopped);
    let begin = Instant::now();
    world.wait_for_recovery_and(begin, || {
        token().is_some_and(|current| current != invalid)
            && agent::find_agent().is_some_and(|next| next.pid != old.pid && next.ready)
    });
    drop(outage);
}

/// Signs a token of the plugin's ServiceAccount with the cluster's key.
fn signed_token(validity: Validity) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    let at = |seconds: i64| now.saturating_add_signed(seconds);
    let uid = api::get(agent::PLUGIN_ACCOUNT)["metadata"]["uid"].take();
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let claims = json!({
        "iss": issuer, "aud": [issuer],
        "sub": format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
        "iat": at(validity.start), "nbf": at(validity.start), "exp": at(validity.end),
        "kubernetes.io": {"namespace": NAMESPACE, "serviceaccount": {"name": ACCOUNT, "uid": uid}},
    });
    let header = json!({"alg": "RS256", "typ": "JWT"});
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed_text = format!("{}.{}", encode(&header), encode(&claims));
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-sign", KEY]);
    let signature = run_with_stdin(&mut openssl, &signed_text).stdout;
    format!("{signed_text}.{}", URL_SAFE_NO_PAD.encode(signature))
}
