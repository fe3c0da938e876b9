use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::json;
use testkit::api::{Request, Response, Routes, Server, State};

use super::*;
use crate::kube::Deadlines;
use crate::kube::connection::AccessSource;
use crate::kube::event::EventType;
use crate::repair::find::stranded::FoundBy;
use crate::repair::pod_events::{
    RULES_UNKNOWN, audited_event, complete_event, known_event, repair_event, unknown_event,
};
use crate::repair::settings::{RepairMode, Settings};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

fn shared() -> Shared {
    let line = ["x", "--node-name=node-1", "--controller-pod-name=linkerd-cni-x"];
    let Flags { settings } = Flags::try_parse_from(line).unwrap();
    Shared::new(settings)
}

/// A connection without an API server, so that each Event waits.
fn no_connection() -> Connection {
    let missing = AccessSource::Kubeconfig("/missing".into());
    Connection::new(missing, CONTROLLER, Deadlines::per_phase(Duration::from_secs(1)))
}

fn pod<'a>(namespace: &'a str, uid: &'a str) -> Regarding<'a> {
    Regarding { kind: "Pod", namespace, name: "web", uid }
}

/// An Event on the node about its audits.
fn about_audits(kind: EventType, note: &str) -> EventContent {
    EventContent { kind, reason: RULES_UNKNOWN, action: "Reporting", note: note.to_owned() }
}

#[test]
fn only_a_newer_event_of_the_same_report_replaces_a_waiting_event() {
    let node = Regarding::node("node-1");
    let (web, other) = (pod("shop", "uid-1"), pod("shop", "uid-2"));
    let failing = about_audits(EventType::Warning, "Cannot audit the pods");
    let again = about_audits(EventType::Normal, "The pods are audited again");
    let repaired = repair_event(RepairMode::InPlace, FoundBy::Audit, 8);
    let skipped = skip_event(FoundBy::Audit, "stranded again");
    let failed = skip_event(FoundBy::Audit, "its repair has failed");
    for (name, earlier, newer, is_replaced) in [
        ("audits work again", (node, &failing), (node, &again), true),
        ("the reason changes", (web, &failed), (web, &skipped), true),
        ("another pod", (web, &failed), (other, &failed), false),
        ("all earlier reports end", (node, &again), (node, &audited_event()), false),
        ("audits fail after that", (node, &audited_event()), (node, &failing), false),
        ("a repair, and another loss", (web, &repaired), (web, &skipped), false),
        ("the pod is complete", (web, &failed), (web, &complete_event()), false),
        ("another reason", (web, &complete_event()), (web, &known_event()), false),
        ("the rules are known", (web, &unknown_event("why")), (web, &known_event()), false),
    ] {
        let shared = shared();
        for (regarding, content) in [earlier, newer] {
            shared.publish_event(&mut no_connection(), regarding, content);
        }
        let waiting = shared.outbox.lock();
        let notes: Vec<&str> = waiting.iter().map(|event| &*event.content.note).collect();
        let (earlier, newer) = (&*earlier.1.note, &*newer.1.note);
        let expected = if is_replaced { vec![newer] } else { vec![earlier, newer] };
        assert_eq!(notes, expected, "{name}");
    }
}

/// An API server that denies Events in each namespace whose name begins with `full`.
#[derive(Clone, Default)]
struct Quotas;

impl Routes for Quotas {
    const HAS_TLS: bool = false;

    fn respond(_: &mut State<Self>, request: &Request) -> Response {
        if request.path.contains("/namespaces/full") {
            return Response::refusal(403, "events is forbidden: exceeded quota: events");
        }
        Response::new(201, json!({"kind": "Event"}))
    }
}

fn connection_to(server: &Server<Quotas>, dir: &Path) -> Connection {
    let kubeconfig = dir.join("kubeconfig");
    let text = json!({
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", server.address)}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "linkerd-cni-context", "context": {"cluster": "c", "user": "u"}},
        ],
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();
    let deadlines = Deadlines::per_phase(Duration::from_secs(30));
    Connection::new(AccessSource::Kubeconfig(kubeconfig), CONTROLLER, deadlines)
}

#[test]
fn attempt_ends_after_denials_in_8_namespaces_and_the_next_one_begins_with_the_others() {
    let server = Server::<Quotas>::start();
    let dir = tempfile::tempdir().unwrap();
    let mut connection = connection_to(&server, dir.path());
    let shared = shared();
    let namespaces = ["full-0", "full-1", "full-2", "full-3", "full-4"];
    let more = ["full-5", "full-6", "full-7", "full-8", "full-9", "open"];
    for namespace in namespaces.into_iter().chain(more) {
        for uid in ["1", "2"] {
            let uid = &*format!("{namespace}-{uid}");
            shared.publish_event(&mut no_connection(), pod(namespace, uid), &complete_event());
        }
    }
    for (name, expected) in [
        (
            "the first attempt",
            "full-0-1 full-1-1 full-2-1 full-3-1 full-4-1 full-5-1 full-6-1 full-7-1",
        ),
        (
            "the second",
            "full-8-1 full-9-1 open-1 open-2 full-0-1 full-1-1 full-2-1 full-3-1 full-4-1 \
             full-5-1",
        ),
    ] {
        server.state().requests.clear();
        assert!(!shared.post_waiting(&mut connection), "{name}");
        let events = server.events();
        let uids: Vec<&str> =
            events.iter().map(|event| event["regarding"]["uid"].as_str().unwrap()).collect();
        assert_eq!(uids.join(" "), expected, "{name}");
    }
    assert_eq!(shared.outbox.lock().len(), 20);
}

#[test]
fn full_outbox_drops_the_event_that_has_waited_longest() {
    let shared = shared();
    let node = Regarding::node("node-1");
    shared.publish_event(&mut no_connection(), node, &audited_event());
    for number in 1..MAX_WAITING {
        let uid = number.to_string();
        shared.publish_event(&mut no_connection(), pod("shop", &uid), &complete_event());
    }
    // The oldest Event is not the first one any more.
    move_to_back(&mut shared.outbox.lock(), "");
    assert_eq!(shared.outbox.lock().len(), MAX_WAITING);
    assert_eq!(shared.outbox.lock().back().unwrap().object.kind, "Node");
    shared.publish_event(&mut no_connection(), pod("other", "x"), &complete_event());
    let waiting = shared.outbox.lock();
    assert_eq!(waiting.len(), MAX_WAITING);
    assert!(waiting.iter().all(|event| event.object.kind == "Pod"));
    assert_eq!(waiting[0].object.uid, "1");
}
