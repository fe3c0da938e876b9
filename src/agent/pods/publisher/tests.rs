use std::path::Path;

use serde_json::json;

use super::*;
use crate::agent::identity;
use crate::kube::pod_list::FromPod as _;

/// Returns a publisher whose API server does not respond.
fn publisher(run_dir: &Path) -> Publisher {
    let settings = Settings::read(|name| match name {
        "KUBERNETES_SERVICE_HOST" => Some("127.0.0.1".to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some("1".to_owned()),
        _ => None,
    });
    let settings = settings.unwrap();
    let source = identity::access_source(&settings).unwrap();
    let status = Arc::new(Status::new(Duration::from_secs(30)));
    Publisher::new(&settings, source, run_dir.to_owned(), &status, &Arc::default(), || false)
}

/// Returns a meshed pod that the injector did not write, so that the agent has to read its
/// namespace.
fn pod(uid: &str, ports: &str) -> NodePod {
    let annotations = json!({"config.linkerd.io/skip-inbound-ports": ports});
    let pod = json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
    });
    NodePod::from_pod(serde_json::from_value(pod).unwrap()).unwrap()
}

#[test]
fn a_new_list_is_requested_only_for_a_temporary_problem() {
    for (name, pod, wants_list) in [
        ("too many facts", pod("u-1", &"25,".repeat(2000)), false),
        ("a UID that is no file name", pod("../u", &"25,".repeat(2000)), false),
        ("a failed request", pod("u-1", "25"), true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut publisher = publisher(dir.path());
        pod_copy::create(dir.path()).unwrap();
        let flow = publisher.apply(Update::Changed(pod));
        assert_eq!(flow.is_break(), wants_list, "{name}");
        assert_eq!(publisher.problems().len(), 1, "{name}");
        assert!(
            publisher.known_pods.values().all(|pod| pod.bypass_reasons.contains(&Reason::Unknown)),
            "{name}"
        );
    }
}
