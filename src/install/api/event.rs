//! Events on the agent's own pod, which operators look at first.

use std::fs;

use super::claims::Claims;
use super::{USER_AGENT, namespace};
use crate::install::environment::Settings;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, Message, Regarding, Reporter};

/// Publishes `message`; where the agent is told of no pod there is nothing to publish
/// it on. The pod's UID, by which `kubectl describe` finds it, is in the agent's token.
pub fn publish(
    connection: &mut Connection,
    settings: &Settings,
    message: &Message,
) -> Result<(), Error> {
    let (Some(pod), Some(namespace)) = (settings.pod.as_deref(), namespace(settings)) else {
        return Ok(());
    };
    let token = fs::read_to_string(settings.service_account_dir.join("token"));
    let claims = Claims::read(&token.unwrap_or_default()).unwrap_or_default();
    let reporter = Reporter {
        controller: USER_AGENT,
        instance: pod.to_owned(),
    };
    let regarding = Regarding {
        kind: "Pod",
        namespace: &namespace,
        name: pod,
        uid: &claims.kubernetes.pod.uid,
    };
    let client = connection.client()?;
    Ok(event::publish(&client, &reporter, regarding, message)?)
}
