use serde_json::{Value, json};

use super::*;

const NAME: &str = "linkerd-cni-x";

/// Returns the agent's pod as an object shows it, with `changes` to the metadata of the object.
fn seen(changes: &[(&str, Value)]) -> SeenPod {
    let mut metadata = json!({"namespace": "linkerd-cni", "name": NAME, "uid": "u-1"});
    for (key, value) in changes {
        metadata[*key] = value.clone();
    }
    SeenPod::read(&serde_json::from_value(metadata).unwrap())
}

/// Returns the agent's pod while it is being deleted with this grace period.
fn deleted(grace_seconds: u64) -> SeenPod {
    let grace = Duration::from_secs(grace_seconds);
    let end = humantime::format_rfc3339_seconds(SystemTime::now() + grace);
    seen(&[
        ("deletionTimestamp", json!(end.to_string())),
        ("deletionGracePeriodSeconds", json!(grace_seconds)),
    ])
}

fn owner(kind: &str, api_version: &str, controller: bool) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": "linkerd-cni",
        "uid": "s",
        "controller": controller,
    })
}

/// Returns what is known of the pod after these updates.
fn after(updates: &[fn(&mut OwnPod)]) -> OwnPod {
    let mut pod = OwnPod { uid: Some("u-1".into()), ..OwnPod::default() };
    for update in updates {
        update(&mut pod);
    }
    pod
}

fn is_graceful(pod: &OwnPod) -> bool {
    matches!(pod.deletion, Deletion::Graceful { .. })
}

#[test]
fn only_a_daemonset_that_is_the_controller_owns_the_pod() {
    let daemonset = owner("DaemonSet", "apps/v1", true);
    for (owners, is_owned) in [
        (json!([daemonset]), true),
        (json!([owner("Node", "v1", false), daemonset]), true),
        (json!([owner("DaemonSet", "apps/v1", false)]), false),
        (json!([owner("ReplicaSet", "apps/v1", true)]), false),
        (json!([owner("DaemonSet", "apps.kruise.io/v1alpha1", true)]), false),
        (json!([]), false),
        (Value::Null, false),
    ] {
        let found = seen(&[("ownerReferences", owners.clone())]).daemonset;
        let expected = Owner { name: "linkerd-cni".into(), uid: "s".into() };
        let expected = if is_owned { Some(expected) } else { None };
        assert_eq!(found, expected, "{owners}");
    }
}

#[test]
fn a_deletion_is_graceful_if_its_grace_period_is_not_zero() {
    let (now, date) = (Instant::now(), humantime::parse_rfc3339("2026-12-01T10:00:00Z").unwrap());
    let at =
        |seconds| Deletion::Graceful { shown: now, token_ends: now + Duration::from_secs(seconds) };
    for (end, grace, expected) in [
        (None, None, Deletion::NotDeleted),
        (Some("2026-12-01T10:00:00Z"), Some(0), Deletion::Forced),
        (Some("2026-12-01T10:00:30Z"), None, Deletion::Forced),
        (Some("2026-12-01T10:00:30Z"), Some(30), at(60)),
        // The deletion is shown late, for example after a partition of the network.
        (Some("2026-12-01T09:59:40Z"), Some(30), at(10)),
        (Some("2026-12-01T09:00:00Z"), Some(30), at(0)),
        (Some("soon"), Some(30), at(0)),
    ] {
        let metadata = Metadata {
            deletion_timestamp: end.map(str::to_owned),
            deletion_grace_period_seconds: grace,
            ..Metadata::default()
        };
        assert_eq!(Deletion::read(&metadata, now, date), expected, "{end:?}");
    }
}

#[test]
fn a_recorded_deletion_stays_and_may_become_forced() {
    const SEEN: fn(&mut OwnPod) = |pod| pod.record_seen(seen(&[]));
    const GRACEFUL: fn(&mut OwnPod) = |pod| pod.record_seen(deleted(30));
    const FORCED: fn(&mut OwnPod) = |pod| pod.record_seen(deleted(0));
    const DELETED: fn(&mut OwnPod) = |pod| pod.record_deleted("u-1");
    const ABSENT: fn(&mut OwnPod) = OwnPod::record_absent;
    const LOST: fn(&mut OwnPod) = OwnPod::record_lost_watch;
    for graceful in [
        &[GRACEFUL][..],
        &[SEEN, GRACEFUL],
        // The watch fails, and the next list comes from another API server and is older.
        &[SEEN, GRACEFUL, LOST, SEEN],
        &[SEEN, LOST, GRACEFUL],
    ] {
        assert!(is_graceful(&after(graceful)));
    }
    for forced in [
        &[SEEN, DELETED][..],
        &[SEEN, GRACEFUL, DELETED],
        &[SEEN, GRACEFUL, FORCED, DELETED],
        &[SEEN, GRACEFUL, ABSENT],
        &[SEEN, FORCED, SEEN, GRACEFUL, LOST],
        &[|pod| pod.record_gone()],
    ] {
        assert_eq!(after(forced).deletion, Deletion::Forced);
    }
    for (updates, expected) in [
        (&[][..], Deletion::Unknown),
        (&[SEEN], Deletion::NotDeleted),
        (&[SEEN, LOST], Deletion::Unknown),
        (&[SEEN, LOST, SEEN], Deletion::NotDeleted),
        // The list comes from a cache that does not have the pod yet.
        (&[SEEN, ABSENT], Deletion::Unknown),
        (&[ABSENT], Deletion::Unknown),
    ] {
        assert_eq!(after(updates).deletion, expected);
    }
}

#[test]
fn a_second_deletion_with_a_shorter_grace_period_ends_the_token_earlier() {
    let mut pod = after(&[|pod| pod.record_seen(deleted(30))]);
    let Deletion::Graceful { shown, token_ends } = pod.deletion else { panic!("{pod:?}") };
    pod.record_seen(deleted(1));
    let Deletion::Graceful { shown: shown_now, token_ends: ends_now } = pod.deletion else {
        panic!("{pod:?}")
    };
    assert!(shown_now == shown && ends_now < token_ends, "{pod:?}");
}

#[test]
fn another_pod_with_the_same_name_shows_that_the_agents_pod_is_gone() {
    let mut pod = after(&[]);
    pod.record_deleted("u-0");
    assert_eq!(pod.deletion, Deletion::Unknown);
    pod.record_seen(seen(&[("uid", json!("u-2"))]));
    assert_eq!(pod.deletion, Deletion::Forced);
    // If the token has no UID, the first pod with the name counts as the agent's.
    let mut pod = OwnPod::default();
    pod.record_seen(seen(&[("uid", json!("u-2"))]));
    assert_eq!((pod.deletion, pod.uid.as_deref()), (Deletion::NotDeleted, Some("u-2")));
}

#[test]
fn the_object_that_was_read_last_decides_which_daemonset_owns_the_pod() {
    let mut pod = after(&[|pod| {
        pod.record_seen(seen(&[("ownerReferences", json!([owner("DaemonSet", "apps/v1", true)]))]));
    }]);
    assert!(pod.daemonset.is_some());
    // `kubectl delete daemonset --cascade=orphan` removes the owner reference, so the next object
    // has none.
    pod.record_seen(seen(&[]));
    assert_eq!(pod.daemonset, None);
}
