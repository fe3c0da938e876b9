use clap::Parser;

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

/// An Event on the node about its audits.
fn about_audits(kind: EventType, note: &str) -> EventContent {
    EventContent { kind, reason: RULES_UNKNOWN, action: "Reporting", note: note.to_owned() }
}

#[test]
fn only_a_newer_event_of_the_same_report_replaces_a_waiting_event() {
    let node = Regarding::node("node-1");
    let pod = |uid| Regarding { kind: "Pod", namespace: "shop", name: "web", uid };
    let (web, other) = (pod("uid-1"), pod("uid-2"));
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
