//! Compares the nodes of the DaemonSet with those whose agent is ready.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;

use super::{ATTEMPT_TIMEOUT, retry};
use crate::agent::identity::{USER_AGENT, access_source, agent_namespace};
use crate::agent::settings::Settings;
use crate::extension::checks::check_rollout;
use crate::kube::Deadlines;
use crate::kube::connection::Connection;
use crate::kube::scheduling::daemonset_path;

/// How long to wait for the agents of all nodes to become ready. They may still be starting if the
/// chart was installed without `--wait`.
const ROLLOUT_BUDGET: Duration = Duration::from_secs(60);

/// Fails unless the agents of all nodes become ready in time.
pub fn verify(settings: &Settings) -> anyhow::Result<()> {
    let source =
        access_source(settings).context("KUBERNETES_SERVICE_HOST and _PORT are not set")?;
    let namespace = agent_namespace(settings).context("LINKERD_CNI_NAMESPACE is not set")?;
    let path = daemonset_path(&namespace, "linkerd-cni");
    let mut connection = Connection::new(source, USER_AGENT, Deadlines::per_phase(ATTEMPT_TIMEOUT));
    let result = retry(ROLLOUT_BUDGET, || {
        let daemonset = connection.client()?.get(&path)?;
        require_ready_nodes(&daemonset)
    });
    let node_count = result.map_err(|problem| {
        anyhow!("{problem:#}; see `kubectl get pods -n {namespace} -l k8s-app=linkerd-cni -o wide`")
    })?;
    tracing::info!("the agent is ready on each of {node_count} nodes");
    Ok(())
}

/// Fails unless each node of the DaemonSet has an agent of the newest revision, and the agent is
/// ready. Returns the number of nodes.
fn require_ready_nodes(daemonset: &Value) -> anyhow::Result<u64> {
    check_rollout("the DaemonSet", daemonset)?;
    let status = &daemonset["status"];
    // The API server omits fields that are 0.
    let nodes = status["desiredNumberScheduled"].as_u64().unwrap_or_default();
    let ready = status["numberReady"].as_u64().unwrap_or_default();
    ensure!(ready >= nodes, "the agent is ready on {ready} of {nodes} nodes");
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_verified_if_each_has_a_ready_current_agent() {
        for (observed, nodes, updated, ready, expected) in [
            (3, 5, 5, 5, Ok(5)),
            (2, 5, 5, 5, Err("has not processed the newest change of the DaemonSet")),
            (3, 0, 0, 0, Err("no node is in the scope of the DaemonSet")),
            (3, 5, 4, 5, Err("4 of 5 nodes have a pod of the newest revision of the DaemonSet")),
            (3, 5, 5, 4, Err("ready on 4 of 5 nodes")),
        ] {
            let status = serde_json::json!({
                "observedGeneration": observed, "desiredNumberScheduled": nodes,
                "updatedNumberScheduled": updated, "numberReady": ready,
            });
            let daemonset = serde_json::json!({"metadata": {"generation": 3}, "status": status});
            match (require_ready_nodes(&daemonset), expected) {
                (Ok(number), Ok(expected)) => assert_eq!(number, expected),
                (Err(problem), Err(part)) => {
                    assert!(problem.to_string().contains(part), "{problem}")
                }
                (result, _) => panic!("{status}: {result:?}"),
            }
        }
        // The API server omits updatedNumberScheduled if it is 0, and a new DaemonSet has no
        // status.
        assert!(require_ready_nodes(&serde_json::json!({"metadata": {"generation": 1}})).is_err());
    }
}
