//! Whether the agent's end is the plugin's end too: asked once, when told to stop.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use super::api::{self, USER_AGENT};
use super::environment::Settings;
use crate::kube::connection::{Connection, Source};
use crate::kube::types::{DaemonSet, Namespace};
use crate::kube::{Client, Deadlines, Error};

/// How long the API server has for its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the API server says about our DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It exists and is to stay.
    Stays,
    /// It is gone or being deleted.
    Ends,
    /// We may not know. Under upstream's chart this never was allowed; under ours the
    /// rights go just when the release does.
    Refused,
    /// No answer in time, or one that means nothing.
    Silent,
    /// There is no API server, or nobody listens.
    Unreachable,
}

/// Whether to take everything off the node. `reached` is whether the API server ever
/// answered in this life: where there never was one, we do as upstream does.
pub fn is_removal(answer: Answer, reached: bool) -> bool {
    match answer {
        Answer::Stays | Answer::Silent => false,
        Answer::Ends | Answer::Refused => true,
        Answer::Unreachable => !reached,
    }
}

/// Asks the API server, and logs what it says.
pub fn ask(settings: &Arc<Settings>) -> Answer {
    let (send, answer) = mpsc::channel();
    let theirs = Arc::clone(settings);
    // Not waited for: what hangs, hangs until the process ends.
    let asking = thread::Builder::new()
        .name("departure".into())
        .spawn(move || {
            let _ = send.send(question(&theirs));
        });
    if let Err(error) = asking {
        warn!("cannot ask the API server: {error}");
        return Answer::Silent;
    }
    let (answer, why) = match answer.recv_timeout(PATIENCE) {
        Ok(answer) => answer,
        Err(_) => (Answer::Silent, Some("no answer in time".into())),
    };
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    info!("DaemonSet {}: {answer:?}{why}", settings.daemonset);
    answer
}

fn question(settings: &Settings) -> (Answer, Option<String>) {
    let (Some(source), Some(namespace)) = (api::source(settings), api::namespace(settings)) else {
        return (Answer::Unreachable, Some("there is no API server".into()));
    };
    let client = match client(source) {
        Ok(client) => client,
        Err(why) => return (Answer::Unreachable, Some(why)),
    };
    let name = &settings.daemonset;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    match client.get::<DaemonSet>(&path) {
        Ok(set) if set.metadata.deletion_timestamp.is_some() => (Answer::Ends, None),
        // It takes what is in it in any order, our pods perhaps before their DaemonSet.
        Ok(_) if is_leaving(&client, &namespace) == Ok(true) => {
            (Answer::Ends, Some("its namespace is being deleted".into()))
        }
        Ok(_) => (Answer::Stays, None),
        Err(error) => {
            let answer = match error.code() {
                Some(401) if plugin_is_known(settings, &namespace) => Answer::Stays,
                code => meaning(code, error.is_timeout() || error.is_answer()),
            };
            (answer, Some(error.to_string()))
        }
    }
}

/// What an error means, by its HTTP status if it has one.
fn meaning(code: Option<u16>, heard: bool) -> Answer {
    match code {
        Some(404) => Answer::Ends,
        Some(401 | 403) => Answer::Refused,
        Some(_) => Answer::Silent,
        None if heard => Answer::Silent,
        None => Answer::Unreachable,
    }
}

/// The agent's own token ends with its pod, so that after a forced deletion it says
/// nothing about the release. The plugin's ends with its account.
fn plugin_is_known(settings: &Settings, namespace: &str) -> bool {
    if settings.plugin_account.is_none() {
        return false;
    }
    let Ok(client) = client(Source::Kubeconfig(settings.kubeconfig())) else {
        return false;
    };
    match is_leaving(&client, namespace) {
        Ok(leaving) => !leaving,
        Err(code) => matches!(code, Some(403 | 404)),
    }
}

/// Whether the namespace is being deleted; without an answer, the HTTP status.
fn is_leaving(client: &Client, namespace: &str) -> Result<bool, Option<u16>> {
    client
        .get::<Namespace>(&format!("/api/v1/namespaces/{namespace}"))
        .map(|namespace| namespace.metadata.deletion_timestamp.is_some())
        .map_err(|error| Error::code(&error))
}

fn client(source: Source) -> Result<Client, String> {
    Connection::new(source, USER_AGENT, Deadlines::each(PATIENCE))
        .client()
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sure_end_or_no_api_server_at_all_takes_the_plugin_off_the_node() {
        for (answer, never_reached, reached) in [
            (Answer::Stays, false, false),
            (Answer::Ends, true, true),
            (Answer::Refused, true, true),
            (Answer::Silent, false, false),
            (Answer::Unreachable, true, false),
        ] {
            assert_eq!(is_removal(answer, false), never_reached, "{answer:?}");
            assert_eq!(is_removal(answer, true), reached, "{answer:?}");
        }
    }

    #[test]
    fn an_error_means_what_its_status_says() {
        for (code, heard, answer) in [
            (Some(404), true, Answer::Ends),
            (Some(401), true, Answer::Refused),
            (Some(403), true, Answer::Refused),
            (Some(500), true, Answer::Silent),
            (Some(429), true, Answer::Silent),
            (None, true, Answer::Silent),
            (None, false, Answer::Unreachable),
        ] {
            assert_eq!(meaning(code, heard), answer, "{code:?}");
        }
    }
}
