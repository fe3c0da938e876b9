//! Events on the agent's own pod, which operators look at first, and on pods of the node.

use std::fs;

use super::claims::Claims;
use super::pod_events::PodEvent;
use super::{USER_AGENT, namespace};
use crate::agent::settings::Settings;
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
    let reporter = reporter(settings);
    let regarding = Regarding {
        kind: "Pod",
        namespace: &namespace,
        name: pod,
        uid: &claims.kubernetes.pod.uid,
    };
    let client = connection.client()?;
    Ok(event::publish(&client, &reporter, regarding, message)?)
}

/// Publishes an Event on another pod.
pub fn publish_on_pod(
    connection: &mut Connection,
    settings: &Settings,
    event: &PodEvent,
) -> Result<(), Error> {
    let regarding = Regarding {
        kind: "Pod",
        namespace: &event.namespace,
        name: &event.pod,
        uid: &event.uid,
    };
    let client = connection.client()?;
    let reporter = reporter(settings);
    Ok(event::publish(
        &client,
        &reporter,
        regarding,
        &event.message,
    )?)
}

/// The API takes no Event without an instance; upstream's chart does not tell the pod.
fn reporter(settings: &Settings) -> Reporter {
    Reporter {
        controller: USER_AGENT,
        instance: settings.pod.clone().unwrap_or_else(|| USER_AGENT.into()),
    }
}
