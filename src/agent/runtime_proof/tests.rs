use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use testkit::table;

use super::*;
use crate::kube::types::Pod;
use crate::node::withdrawal::RunFailure;

const SECOND: Duration = Duration::from_secs(1);
/// When the chain was put in place, by the node's clock.
const SINCE: u64 = 1000;

fn date(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn chain(digest: &str, since: u64) -> Chain {
    Chain { digest: digest.to_owned(), since: date(since) }
}

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: "shop".into(), name: "web".into(), uid: uid.into() }
}

fn evidence() -> Evidence {
    Evidence {
        pod: "shop/web".into(),
        failure: RunFailure::NotFound,
        message: "failed to find plugin".into(),
    }
}

/// What happens to a node whose chain `a` is in place since [`SINCE`].
enum Step {
    Chained(&'static str, u64),
    NotChained,
    /// The runtime calls the plugin at this time.
    Called(u64),
    /// A pod with a sandbox that the kubelet accepted at this time.
    Started(u64),
    /// A pod without sandbox.
    Stuck,
    /// The API server answers the next question.
    Answered(Answer),
    /// A pass removes the entry, and the next agent reads the record.
    Restarted(&'static str),
    /// The record is removed.
    RecordRemoved,
}

/// Applies the steps, a minute after each other, and returns the proof.
fn after(steps: Vec<Step>) -> RuntimeProof {
    let mut now = Instant::now();
    let mut proof = RuntimeProof::new(None, now);
    proof.observe_chain(Some(chain("a", SINCE)), now);
    for step in steps {
        match step {
            Step::Chained(digest, since) => proof.observe_chain(Some(chain(digest, since)), now),
            Step::NotChained => proof.observe_chain(None, now),
            Step::Called(seconds) => proof.record_call(date(seconds)),
            Step::Started(seconds) => {
                let accepted = Some(date(seconds));
                proof.record_pod(&pod("u-2"), Sandbox::Made { accepted }, now);
            }
            Step::Stuck => proof.record_pod(&pod("u-1"), Sandbox::Missing, now),
            Step::Answered(answer) => {
                let question = proof.next_question(now).expect("a question is due");
                proof.record_answer(&question, answer, now);
            }
            Step::Restarted(digest) => {
                proof = RuntimeProof::new(None, now);
                proof.adopt_withdrawal(digest, evidence());
            }
            Step::RecordRemoved => proof.forget_withdrawal(),
        }
        now += 60 * SECOND;
    }
    proof
}

fn cannot_run() -> Step {
    Step::Answered(Answer::CannotRun(evidence()))
}

#[test]
fn a_chain_is_proven_or_withdrawn_only_by_what_the_runtime_does_after_it() {
    use ChainState::{Proven, Provisional};
    use Step::{Answered, Called, Chained, NotChained, RecordRemoved, Restarted, Started, Stuck};
    let withdrawn = || ChainState::Withdrawn(evidence());
    let denied = || Answer::Denied("forbidden".into());
    for (name, (steps, digest, expected)) in table::named([
        ("nothing happens", (vec![], "a", Some(Provisional))),
        ("a call", (vec![Called(1003)], "a", Some(Proven))),
        ("a call that may be of the earlier chain", (vec![Called(1001)], "a", Some(Provisional))),
        ("a pod starts", (vec![Started(1003)], "a", Some(Proven))),
        ("a pod had started before", (vec![Started(900)], "a", Some(Provisional))),
        (
            "a pod has started, then the config is written again",
            (vec![Started(1003), Chained("a", 2000)], "a", Some(Proven)),
        ),
        (
            "the config is written again, then a pod of before is seen",
            (vec![Chained("a", 2000), Started(1500)], "a", Some(Provisional)),
        ),
        (
            "a proven chain changes",
            (vec![Called(1003), Chained("b", 2000)], "b", Some(Provisional)),
        ),
        ("the chain before", (vec![Chained("b", 2000)], "a", None)),
        ("a pod is stuck", (vec![Stuck], "a", Some(Provisional))),
        (
            "a pod waits for a volume",
            (vec![Stuck, Answered(Answer::SaysNothing)], "a", Some(Provisional)),
        ),
        (
            "the agent may not list Events",
            (vec![Stuck, Answered(denied())], "a", Some(Provisional)),
        ),
        ("the runtime cannot run the plugin", (vec![Stuck, cannot_run()], "a", Some(withdrawn()))),
        ("the entry is removed", (vec![Stuck, cannot_run(), NotChained], "a", Some(withdrawn()))),
        (
            "pods start without the entry",
            (vec![Stuck, cannot_run(), NotChained, Started(2000)], "a", Some(withdrawn())),
        ),
        (
            "a late record",
            (vec![Stuck, cannot_run(), NotChained, Called(2000)], "a", Some(withdrawn())),
        ),
        ("the agent restarts", (vec![Restarted("a")], "a", Some(withdrawn()))),
        (
            "the agent restarts before the entry is removed",
            (vec![Restarted("a"), Chained("a", SINCE)], "a", Some(withdrawn())),
        ),
        (
            "the next agent has another plugin",
            (vec![Restarted("a"), Chained("b", 3000)], "b", Some(Provisional)),
        ),
        ("the record is removed", (vec![Restarted("a"), RecordRemoved], "a", None)),
        (
            "the chain is put in place again",
            (vec![Restarted("a"), RecordRemoved, Chained("a", 9)], "a", Some(Provisional)),
        ),
    ]) {
        let proof = after(steps);
        assert_eq!(proof.state(digest), expected.as_ref(), "{name}");
    }
}

#[test]
fn the_api_server_is_asked_only_about_stuck_pods_of_a_provisional_chain() {
    use Step::{Called, NotChained, Stuck};
    for (name, (steps, is_asked)) in table::named([
        ("no pod is stuck", (vec![], false)),
        ("a pod is stuck", (vec![Stuck], true)),
        ("the chain is proven", (vec![Stuck, Called(1003)], false)),
        ("no chain is in place", (vec![Stuck, NotChained], false)),
        ("the chain is withdrawn", (vec![Stuck, cannot_run()], false)),
    ]) {
        assert_eq!(after(steps).due().is_some(), is_asked, "{name}");
    }
}

#[test]
fn an_answer_about_an_earlier_chain_withdraws_nothing() {
    let now = Instant::now();
    for (name, later) in
        table::named([("another digest", chain("b", 2000)), ("written again", chain("a", 2000))])
    {
        let mut proof = after(vec![Step::Stuck]);
        let question = proof.next_question(now + 600 * SECOND).unwrap();
        proof.observe_chain(Some(later.clone()), now);
        proof.record_answer(&question, Answer::CannotRun(evidence()), now);
        assert_eq!(proof.state(&later.digest), Some(&ChainState::Provisional), "{name}");
    }
}

#[test]
fn a_pod_that_gets_a_sandbox_or_leaves_is_not_asked_about() {
    let now = Instant::now();
    for (name, sandbox) in table::named([
        ("a sandbox of before", Sandbox::Made { accepted: Some(date(1)) }),
        ("a sandbox of unknown age", Sandbox::Made { accepted: None }),
        ("deletion", Sandbox::Leaving),
    ]) {
        let mut proof = after(vec![Step::Stuck]);
        proof.record_pod(&pod("u-1"), sandbox, now);
        assert_eq!(proof.due(), None, "{name}");
    }
    let mut proof = after(vec![Step::Stuck]);
    proof.record_pods(&[(pod("u-3"), Sandbox::Leaving)], now);
    assert_eq!(proof.due(), None, "a list without the pod");
}

#[test]
fn status_says_what_is_known_of_the_chain() {
    use Step::{Answered, Called, Chained, NotChained, Stuck};
    let denied = || Answered(Answer::Denied("may not list Events".into()));
    for (name, (steps, chain, note)) in table::named([
        ("provisional", (vec![], Some(ChainProof::Provisional), Some(NOT_CALLED))),
        ("proven", (vec![Called(1003)], Some(ChainProof::Proven), None)),
        ("not chained", (vec![NotChained], None, None)),
        (
            "no permission",
            (vec![Stuck, denied()], Some(ChainProof::Unprovable), Some("may not list Events")),
        ),
        (
            "no permission, but proven",
            (vec![Stuck, denied(), Called(1003)], Some(ChainProof::Proven), None),
        ),
        (
            "withdrawn",
            (
                vec![Stuck, cannot_run(), NotChained],
                Some(ChainProof::Withdrawn),
                Some("cannot run the plugin for pod shop/web: failed to find plugin"),
            ),
        ),
        (
            "another chain after the withdrawal",
            (
                vec![Stuck, cannot_run(), Chained("b", 2000)],
                Some(ChainProof::Provisional),
                Some(NOT_CALLED),
            ),
        ),
    ]) {
        let status = after(steps).status();
        assert_eq!(status.as_ref().map(|status| status.chain), chain, "{name}");
        let found = status.and_then(|status| status.note);
        assert_eq!(found.as_deref(), note, "{name}");
    }
}

#[test]
fn a_sandbox_is_read_from_the_condition_or_else_from_the_addresses() {
    let missing = Some(Sandbox::Missing);
    let made = Some(Sandbox::Made { accepted: None });
    let condition = |status: &str| {
        json!({"conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "PodReadyToStartContainers", "status": status},
        ]})
    };
    for (name, (spec, status, expected)) in table::named([
        ("no status", (json!({}), Value::Null, missing)),
        ("the condition is true", (json!({}), condition("True"), made)),
        ("the condition is false", (json!({}), condition("False"), missing)),
        ("the condition is unknown", (json!({}), condition("Unknown"), missing)),
        ("an address", (json!({}), json!({"podIPs": [{"ip": "10.0.0.1"}]}), made)),
        (
            "an address of the last sandbox",
            (
                json!({}),
                json!({
                    "podIPs": [{"ip": "10.0.0.1"}],
                    "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
                }),
                missing,
            ),
        ),
        (
            "a time",
            (
                json!({}),
                json!({"podIPs": [{"ip": "::1"}], "startTime": "1970-01-01T00:16:40Z"}),
                Some(Sandbox::Made { accepted: Some(date(SINCE)) }),
            ),
        ),
        ("the host's network", (json!({"hostNetwork": true}), condition("False"), None)),
    ]) {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": spec, "status": status}))
                .unwrap();
        assert_eq!(Sandbox::read(&pod), expected, "{name}");
    }
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}});
    let deleted: Pod = serde_json::from_value(deleted).unwrap();
    assert_eq!(Sandbox::read(&deleted), Some(Sandbox::Leaving));
}
