use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::time::Instant;

use tempfile::TempDir;

use super::*;
use crate::pod::annotation;
use crate::pod::mesh::Proxy;
use crate::pod::skip::SkipReason;
use crate::redirect::ports::PortRange;

fn run_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path()).unwrap();
    dir
}

fn pod(name: &str, uid: &str) -> PodRef {
    PodRef { namespace: "shop".into(), name: name.into(), uid: uid.into() }
}

/// A decision with a value in each field.
fn meshed() -> Decision<PodFacts> {
    let containers = r#"{"metadata":{},"spec":{"initContainers":[{"name":"migrate"}],"containers":[
        {"name":"app","securityContext":{"runAsUser":1}},{"name":"linkerd-proxy"}]}}"#;
    let containers = serde_json::from_str(containers).unwrap();
    Decision::Redirect(PodFacts {
        uid: "object".into(),
        annotations: [(annotation::SKIP_INBOUND_PORTS.to_owned(), "25".to_owned())].into(),
        proxy: Proxy { uid: Some(2102), admin_port: Some(4191), ..Proxy::default() },
        runtime_class: "kata".to_owned(),
        api_ports: vec![PortRange { first: 443, last: 6443 }],
        early_containers: crate::pod::containers::before_proxy(&containers),
        app_containers: crate::pod::containers::beside_proxy(&containers),
    })
}

const UNMESHED: Decision<PodFacts> = Decision::Skip(SkipReason::NoProxy);

fn write(run_dir: &Path, uid: &str, text: &str) -> PathBuf {
    let path = dir(run_dir).join(uid);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn plugin_reads_what_the_agent_published() {
    let dir = run_dir();
    let web = pod("web", "u-1");
    assert_eq!(read(dir.path(), &web).unwrap(), None);
    for decision in [meshed(), UNMESHED] {
        publish(dir.path(), web.clone(), decision.clone()).unwrap();
        let published = PublishedPod::Decision(Box::new(decision));
        assert_eq!(read(dir.path(), &web).unwrap(), Some(published));
    }
    publish_too_large(dir.path(), web.clone()).unwrap();
    assert_eq!(read(dir.path(), &web).unwrap(), Some(PublishedPod::TooLarge));
    let (_, access) = files::read(&dir.path().join("pods/u-1")).unwrap();
    assert_eq!(access.mode, 0o600);
    assert_eq!(fs::metadata(dir.path().join("pods")).unwrap().mode() & 0o777, 0o700);
    assert!(remove(dir.path(), &web).unwrap());
    assert_eq!(read(dir.path(), &web).unwrap(), None);
    assert!(!remove(dir.path(), &web).unwrap());
}

/// Publishes the decision as an agent of another version: `change` gets the text of the file.
fn publish_changed(
    run_dir: &Path,
    decision: Decision<PodFacts>,
    change: impl FnOnce(String) -> String,
) {
    publish(run_dir, pod("web", "u-1"), decision).unwrap();
    let path = dir(run_dir).join("u-1");
    let text = fs::read_to_string(&path).unwrap();
    let changed = change(text.clone());
    assert_ne!(changed, text);
    write(run_dir, "u-1", &changed);
}

fn without_format(text: String) -> String {
    text.replace(&format!("\"format\":\"{}\",", format()), "")
}

#[test]
fn a_file_of_an_agent_of_another_version_shows_only_that_the_pod_is_meshed() {
    let other = |text: String| text.replace(&format(), "1-of-another-version");
    let later = |text: String| other(text).replace("noProxy", "forALaterReason");
    for (name, decision, change, is_meshed) in [
        (
            "an earlier agent's redirect",
            meshed(),
            &without_format as &dyn Fn(String) -> String,
            true,
        ),
        ("another agent's redirect", meshed(), &other, true),
        ("another agent's skip", UNMESHED, &other, false),
        ("a skip for an unknown reason", UNMESHED, &later, false),
    ] {
        let dir = run_dir();
        let web = pod("web", "u-1");
        publish_changed(dir.path(), decision, change);
        let published = PublishedPod::OtherFormat { is_meshed };
        assert_eq!(read(dir.path(), &web).unwrap(), Some(published), "{name}");
        let moment = Duration::from_millis(20);
        let unkept = if is_meshed { NodeCopy::Meshed } else { NodeCopy::Unkept };
        assert_eq!(read_or_wait(dir.path(), &web, moment), unkept, "{name}");
        // The agent of the plugin's version replaces the file.
        let _lock = Lock::take(dir.path()).unwrap();
        let kept = if is_meshed { NodeCopy::Meshed } else { NodeCopy::Lacks };
        assert_eq!(read_or_wait(dir.path(), &web, moment), kept, "{name}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| read_or_wait(dir.path(), &web, Duration::from_secs(60)));
            thread::sleep(moment);
            publish(dir.path(), web.clone(), meshed()).unwrap();
            assert_eq!(waiting.join().unwrap(), NodeCopy::Decides(Box::new(meshed())), "{name}");
        });
    }
}

/// An older agent leaves out what only a newer plugin knows, and a newer agent writes what an older
/// plugin does not know.
#[test]
fn a_field_of_a_newer_agent_does_not_make_a_file_of_the_same_format_unusable() {
    let dir = run_dir();
    let with_field = |text: String| text.replace("\"proxy\"", "\"later\":[1],\"proxy\"");
    publish_changed(dir.path(), meshed(), with_field);
    let published = PublishedPod::Decision(Box::new(meshed()));
    assert_eq!(read(dir.path(), &pod("web", "u-1")).unwrap(), Some(published));
}

/// If this text changes: raise [`FACTS_VERSION`] if a plugin would decide otherwise by a file that
/// lacks the change. The digest in the format follows from the annotations by itself.
#[test]
fn the_format_stands_for_the_facts_and_annotations_of_a_file() {
    let dir = run_dir();
    publish(dir.path(), pod("web", "u-1"), meshed()).unwrap();
    let text = fs::read_to_string(dir.path().join("pods/u-1")).unwrap();
    let (version, digest) = text.split_once("\"format\":\"").unwrap().1.split_once('-').unwrap();
    assert_eq!(version, FACTS_VERSION.to_string());
    assert!(digest[..16].bytes().all(|digit| digit.is_ascii_hexdigit()), "{digest}");
    insta::assert_snapshot!(without_format(text));
}

#[test]
fn file_of_another_pod_is_rejected() {
    let dir = run_dir();
    publish(dir.path(), pod("web", "u-1"), UNMESHED).unwrap();
    fs::copy(dir.path().join("pods/u-1"), dir.path().join("pods/u-2")).unwrap();
    let elsewhere = PodRef { namespace: "other".into(), ..pod("web", "u-1") };
    for pod in [pod("api", "u-1"), pod("web", "u-2"), elsewhere] {
        let error = read(dir.path(), &pod).unwrap_err();
        assert!(error.to_string().contains(" is the copy of pod "), "{pod}: {error}");
    }
}

#[test]
fn every_half_written_or_foreign_file_is_rejected() {
    let dir = run_dir();
    let web = pod("web", "u-1");
    publish(dir.path(), web.clone(), meshed()).unwrap();
    let complete = fs::read_to_string(dir.path().join("pods/u-1")).unwrap();
    for end in 0..complete.len() {
        write(dir.path(), "u-1", &complete[..end]);
        let error = read(dir.path(), &web).unwrap_err();
        assert!(error.to_string().contains("not a copy of a pod"), "cut off at {end}: {error}");
    }
    let too_large = complete + &" ".repeat(6 << 20);
    let list_of_fields = r#"["shop","web","u-1",{"skip":"noProxy"}]"#;
    for foreign in ["null", "[]", "{}", list_of_fields, "\0", &too_large] {
        write(dir.path(), "u-1", foreign);
        assert!(read(dir.path(), &web).is_err(), "{}", &foreign[..foreign.len().min(50)]);
    }
    fs::remove_file(dir.path().join("pods/u-1")).unwrap();
    fs::create_dir(dir.path().join("pods/u-1")).unwrap();
    assert!(read(dir.path(), &web).is_err());
}

#[test]
fn file_that_others_can_write_or_own_is_rejected() {
    let dir = run_dir();
    let web = pod("web", "u-1");
    for (mode, is_trusted) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
        publish(dir.path(), web.clone(), UNMESHED).unwrap();
        fs::set_permissions(dir.path().join("pods/u-1"), Permissions::from_mode(mode)).unwrap();
        assert_eq!(read(dir.path(), &web).is_ok(), is_trusted, "{mode:o}");
    }
    publish(dir.path(), web.clone(), UNMESHED).unwrap();
    chown(dir.path().join("pods/u-1"), Some(1000), None).unwrap();
    let error = read(dir.path(), &web).unwrap_err().to_string();
    assert!(error.ends_with("is not a file that only root can write"), "{error}");
}

#[test]
fn pod_is_not_published_if_its_uid_is_not_a_file_name() {
    let dir = run_dir();
    for uid in ["", ".lock", "..", "../u", "a/b", "a b", &"a".repeat(254)] {
        assert!(publish(dir.path(), pod("web", uid), UNMESHED).is_err(), "{uid}");
        assert_eq!(read(dir.path(), &pod("web", uid)).unwrap(), None, "{uid}");
        assert!(!remove(dir.path(), &pod("web", uid)).unwrap(), "{uid}");
    }
    assert_eq!(files::file_names(&dir.path().join("pods")).unwrap(), [""; 0]);
}

#[test]
fn node_copy_without_an_agent_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read(dir.path(), &pod("web", "u-1")).unwrap(), None);
    assert!(!is_kept(dir.path()));
    assert!(retain(dir.path(), &BTreeSet::new()).is_empty());
    assert!(clear(dir.path()).is_empty());
    assert!(Lock::take(dir.path()).is_err());
}

#[test]
fn node_copy_is_kept_while_one_of_several_agents_holds_the_lock() {
    let dir = run_dir();
    assert!(!is_kept(dir.path()));
    let first = Lock::take(dir.path()).unwrap();
    let second = Lock::take(dir.path()).unwrap();
    assert!(is_kept(dir.path()) && first.is_in_place(dir.path()));
    drop(first);
    assert!(is_kept(dir.path()));
    drop(second);
    assert!(!is_kept(dir.path()));
    let lock = Lock::take(dir.path()).unwrap();
    fs::remove_file(dir.path().join("pods/.lock")).unwrap();
    assert!(!is_kept(dir.path()) && !lock.is_in_place(dir.path()));
}

#[test]
fn plugin_waits_for_a_file_only_while_an_agent_keeps_the_copy() {
    let dir = run_dir();
    let web = pod("web", "u-1");
    let minute = Duration::from_secs(60);
    assert_eq!(read_or_wait(dir.path(), &web, minute), NodeCopy::Unkept);
    let lock = Lock::take(dir.path()).unwrap();
    let begin = Instant::now();
    for uid in ["", "../u"] {
        assert_eq!(read_or_wait(dir.path(), &pod("web", uid), minute), NodeCopy::Lacks);
    }
    publish_too_large(dir.path(), pod("large", "u-3")).unwrap();
    assert_eq!(read_or_wait(dir.path(), &pod("large", "u-3"), minute), NodeCopy::Meshed);
    assert!(begin.elapsed() < minute);
    assert_eq!(read_or_wait(dir.path(), &web, Duration::from_millis(20)), NodeCopy::Lacks);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| read_or_wait(dir.path(), &web, minute));
        thread::sleep(Duration::from_millis(20));
        publish(dir.path(), web.clone(), meshed()).unwrap();
        assert_eq!(waiting.join().unwrap(), NodeCopy::Decides(Box::new(meshed())));
        let waiting = scope.spawn(|| read_or_wait(dir.path(), &pod("web", "u-2"), minute));
        thread::sleep(Duration::from_millis(20));
        drop(lock);
        assert_eq!(waiting.join().unwrap(), NodeCopy::Unkept);
    });
}
