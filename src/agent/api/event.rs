//! Posts Events on the agent's own pod and on other pods of this node.

use std::fs;

use super::claims::Claims;
use super::pod_events::PodEvent;
use super::{USER_AGENT, namespace};
use crate::agent::settings::Settings;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, Message, Regarding, Reporter};

/// Posts `message` on the agent's own pod. Does nothing if the settings do not name that pod. The
/// pod's UID, which `kubectl describe` needs to find the Event, comes from the agent's token.
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

/// Posts an Event on another pod.
pub fn publish_on_pod(
    connection: &mut Connection,
    settings: &Settings,
    event: &PodEvent,
) -> Result<(), Error> {
    let regarding =
        Regarding { kind: "Pod", namespace: &event.namespace, name: &event.pod, uid: &event.uid };
    let client = connection.client()?;
    let reporter = reporter(settings);
    Ok(event::publish(&client, &reporter, regarding, &event.message)?)
}

/// Names the agent as the source of an Event. The API requires an instance, and upstream's chart
/// does not tell the agent the name of its pod, so the agent's own name is the fallback.
fn reporter(settings: &Settings) -> Reporter {
    Reporter {
        controller: USER_AGENT,
        instance: settings.pod.clone().unwrap_or_else(|| USER_AGENT.into()),
    }
}
