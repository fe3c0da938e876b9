//! `linkerd cni compare`: runs a DaemonSet that compares the redirect of each meshed pod with the one that
//! this plugin would install, and gathers what it found. The DaemonSet is deleted again.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::agents::{DAEMONSET, in_parallel};
use super::api::{Api, Error, get, list};
use crate::deadline::Deadline;
use crate::kube::scheduling::daemonset_path;
use crate::repair::comparison::Report;

const NAME: &str = "linkerd-cni-compare";
const SELECTOR: &str = "labelSelector=k8s-app%3Dlinkerd-cni-compare";
const PORT: u16 = 8080;
/// Time between two looks at the DaemonSet.
const INTERVAL: Duration = Duration::from_secs(1);

/// Compares the pods of all nodes with an agent. `image` runs on the nodes.
/// Fails if the DaemonSet cannot be created, or none of its pods can be asked.
pub fn run(api: &dyn Api, namespace: &str, image: &str, end: Deadline) -> Result<Report, String> {
    let agent: Value = get(api, &daemonset_path(namespace, DAEMONSET))
        .map_err(|why| format!("cannot read the DaemonSet {namespace}/{DAEMONSET}: {why}"))?;
    let all = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets");
    let daemonset = daemonset(&agent["spec"]["template"]["spec"], image).to_string();
    api.request("POST", &all, &daemonset).map_err(|why| {
        format!(
            "cannot create the DaemonSet {namespace}/{NAME}: {why}; if it exists, wait until the other \
             comparison ends, or delete it with kubectl -n {namespace} delete daemonset {NAME}"
        )
    })?;
    let report = gather(api, namespace, end);
    let deleted = api.request("DELETE", &daemonset_path(namespace, NAME), "");
    deleted.map_err(|why| format!("cannot delete the DaemonSet {namespace}/{NAME}: {why}"))?;
    report.map_err(|why| format!("cannot read what the nodes found: {why}"))
}

/// Waits until all pods have compared, and joins what they found. Pods of an earlier comparison, which are
/// listed until they have ended, are not asked.
fn gather(api: &dyn Api, namespace: &str, end: Deadline) -> Result<Report, Error> {
    let uid = loop {
        let found: Value = get(api, &daemonset_path(namespace, NAME))?;
        let (status, wanted) = (&found["status"], &found["metadata"]["generation"]);
        let is_done = status["observedGeneration"] == *wanted
            && status["desiredNumberScheduled"] == status["numberReady"];
        if is_done || end.has_passed() {
            break found["metadata"]["uid"].clone();
        }
        thread::sleep(INTERVAL.min(end.remaining()));
    };
    let pods_path = format!("/api/v1/namespaces/{namespace}/pods");
    let mut pods: Vec<Value> = list(api, &pods_path, SELECTOR)?;
    pods.retain(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == uid);
    let ask = |pod: Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let node = pod["spec"]["nodeName"].as_str().unwrap_or(name).to_owned();
        get(api, &format!("{pods_path}/{name}:{PORT}/proxy/status")).unwrap_or_else(|why| {
            let why = format!("the pod {namespace}/{name} has no result: {why}");
            Report { unknown: [(node, why)].into(), ..Report::default() }
        })
    };
    let mut all = Report::default();
    for report in in_parallel(pods, ask) {
        all.equal += report.equal;
        all.differ.extend(report.differ);
        all.unknown.extend(report.unknown);
    }
    Ok(all)
}

/// Returns the DaemonSet, which runs where the agent of `agent` runs, with its ServiceAccount.
fn daemonset(agent: &Value, image: &str) -> Value {
    let labels = json!({"k8s-app": NAME});
    let mut pod = json!({
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{
            "name": "compare",
            "image": image,
            "command": ["/usr/lib/linkerd/linkerd-cni-repair-controller"],
            "args": ["--compare=/host", "--mount-prefix=/", format!("--controller-pod-name={NAME}")],
            "env": [
                {"name": "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME",
                    "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "DEST_CNI_NET_DIR", "valueFrom":
                    {"configMapKeyRef": {"name": "linkerd-cni-config", "key": "dest_cni_net_dir"}}},
            ],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1},
            "volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": true,
                "mountPropagation": "HostToContainer"}],
            "securityContext": {
                "runAsUser": 0,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                // Ignored where SELinux is off.
                "seLinuxOptions": {"type": "spc_t"},
                // To enter the network namespaces of pods, and to run the host's iptables there.
                "capabilities": {
                    "drop": ["ALL"], "add": ["SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_CHROOT"],
                },
            },
        }],
    });
    for key in ["serviceAccountName", "imagePullSecrets", "nodeSelector", "affinity", "tolerations"]
    {
        if !agent[key].is_null() {
            pod[key] = agent[key].clone();
        }
    }
    let annotations = json!({"linkerd.io/inject": "disabled"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    })
}

/// Renders one line for each pod that differs or cannot be compared, and a summary.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for (pod, found) in &report.differ {
        text.push_str(&format!("{pod}: {}\n", found.join("; ")));
    }
    for (subject, why) in &report.unknown {
        text.push_str(&format!("{subject}: cannot be compared: {why}\n"));
    }
    let Report { equal, differ, unknown } = report;
    let (differ, unknown) = (differ.len(), unknown.len());
    let all = equal + differ + unknown;
    text + &format!("{all} pods: {equal} equal, {differ} differ, {unknown} cannot be compared\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::fake::{AGENTS, Cluster, DAEMONSET, Recorded};

    const OF_COMPARISON: &str =
        "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni-compare";

    /// A fake cluster that accepts the DaemonSet of `linkerd cni compare`, whose pods return `results`.
    fn cluster(results: &[Value]) -> Cluster {
        let mut cluster = Cluster::healthy();
        let ready = json!({"observedGeneration": 1, "desiredNumberScheduled": 2, "numberReady": 2});
        cluster.put("/apis/apps/v1/namespaces/linkerd-cni/daemonsets", json!({}));
        cluster.put(OF_COMPARISON, json!({"metadata": {"generation": 1}, "status": ready}));
        for (number, result) in results.iter().enumerate() {
            let name = format!("linkerd-cni-{}", number + 1);
            cluster.put(&format!("{AGENTS}/{name}:8080/proxy/status"), result.clone());
        }
        cluster
    }

    fn ran(cluster: Cluster, wait: Duration) -> (Result<Report, String>, Recorded) {
        let api = Recorded::new(cluster);
        let report = run(&api, "linkerd-cni", "image:1", Deadline::after(wait));
        (report, api)
    }

    #[test]
    fn the_text_has_a_line_for_each_pod_that_differs_or_cannot_be_compared_and_a_summary() {
        let differ = json!({"default/web-0": ["a", "b", "c", "d", "e"], "default/web-1": ["f"]});
        let (report, api) = ran(
            cluster(&[
                json!({"equal": 117, "differ": differ, "unknown": {"default/x": "why"}}),
                json!({"equal": 3, "differ": {}, "unknown": {}}),
            ]),
            Duration::ZERO,
        );
        let wanted = "default/web-0: a; b; c; d; e\n\
                      default/web-1: f\n\
                      default/x: cannot be compared: why\n\
                      123 pods: 120 equal, 2 differ, 1 cannot be compared\n";
        assert_eq!(text(&report.unwrap()), wanted);
        assert_eq!(api.last("DELETE"), format!("DELETE {OF_COMPARISON}"));
        assert_eq!(text(&Report::default()), "0 pods: 0 equal, 0 differ, 0 cannot be compared\n");
    }

    #[test]
    fn a_node_without_a_result_cannot_be_compared_and_the_daemonset_is_deleted_in_any_case() {
        let mut pending = cluster(&[json!({"equal": 1, "differ": {}, "unknown": {}})]);
        pending.set(OF_COMPARISON, "/status/numberReady", json!(1));
        let (report, api) = ran(pending, Duration::ZERO);
        let report = report.unwrap();
        assert_eq!(report.equal, 1);
        let why = &report.unknown["node-2"];
        assert!(why.starts_with("the pod linkerd-cni/linkerd-cni-2 has no result: "), "{why}");
        assert_eq!(api.count("DELETE"), 1);

        let mut unlisted = cluster(&[]);
        unlisted.put(AGENTS, json!(403));
        let (report, api) = ran(unlisted, Duration::ZERO);
        assert!(report.unwrap_err().starts_with("cannot read what the nodes found: "));
        assert_eq!(api.count("DELETE"), 1);
    }

    #[test]
    fn a_pod_of_an_earlier_comparison_that_has_not_ended_is_not_asked() {
        let mut again = cluster(&[json!({"equal": 1, "differ": {}, "unknown": {}})]);
        again.set(OF_COMPARISON, "/metadata/uid", json!("2"));
        for (item, owner) in ["2", "1"].iter().enumerate() {
            let owners = format!("/items/{item}/metadata/ownerReferences");
            again.set(AGENTS, &owners, json!([{"uid": owner}]));
        }
        let (report, _) = ran(again, Duration::ZERO);
        assert_eq!(text(&report.unwrap()), "1 pods: 1 equal, 0 differ, 0 cannot be compared\n");
    }

    #[test]
    fn without_the_agents_daemonset_nothing_is_created() {
        let mut missing = cluster(&[]);
        missing.0.remove(DAEMONSET);
        let (report, api) = ran(missing, Duration::ZERO);
        let error = report.unwrap_err();
        assert!(
            error.starts_with("cannot read the DaemonSet linkerd-cni/linkerd-cni: "),
            "{error}"
        );
        assert_eq!(api.count("DELETE"), 0);
    }

    #[test]
    fn the_comparison_runs_where_the_agent_runs_with_read_access_to_the_node() {
        let agent = json!({"serviceAccountName": "a", "tolerations": [{"operator": "Exists"}]});
        let found = daemonset(&agent, "image:1");
        let pod = &found["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["serviceAccountName"], &pod["tolerations"]),
            (&json!("a"), &agent["tolerations"])
        );
        assert!(pod.get("affinity").is_none());
        assert_eq!(pod["containers"][0]["volumeMounts"][0]["readOnly"], true);
        // Upstream's DaemonSet selects pods with the label k8s-app=linkerd-cni.
        assert_eq!(found["spec"]["template"]["metadata"]["labels"]["k8s-app"], NAME);
    }
}
