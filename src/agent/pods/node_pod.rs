//! A pod of the node, reduced to what its copy and the agent need.

use crate::agent::own_pod::SeenPod;
use crate::cni::args::PodRef;
use crate::kube::pod_list::FromPod;
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID};
use crate::pod::Decision;
use crate::pod::containers::has_ipv6_address;
use crate::pod::facts::{ObjectFacts, object_facts};
use crate::pod_copy::FACTS_LIMIT;

pub struct NodePod {
    /// The pod as the runtime names it.
    pub pod: PodRef,
    pub seen: SeenPod,
    /// `None` for a pod in the host's network, which is not published.
    pub content: Option<PodContent>,
}

/// What is published of a pod.
pub struct PodContent {
    /// A `Decision<ObjectFacts>` as JSON, which needs a third of the memory: all pods of a list are
    /// in memory at once. Empty if longer than [`FACTS_LIMIT`].
    pub facts: Box<[u8]>,
    /// This is not a part of `facts`, because the addresses change after the pod is published.
    pub has_ipv6: bool,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        if object.status.has_ended() {
            return None;
        }
        let pod = runtime_pod(&object.metadata);
        let seen = SeenPod::read(&object.metadata);
        let content =
            if object.spec.host_network { None } else { Some(PodContent::from_object(object)?) };
        Some(NodePod { pod, seen, content })
    }
}

impl PodContent {
    /// Returns the facts in the pod's object. `None`: they are longer than [`FACTS_LIMIT`].
    pub fn own_facts(&self) -> Option<Decision<ObjectFacts>> {
        // Cannot fail for facts that this program has written.
        serde_json::from_slice(&self.facts).ok()
    }

    fn from_object(object: Pod) -> Option<PodContent> {
        let has_ipv6 = has_ipv6_address(&object);
        let mut facts = serde_json::to_vec(&object_facts(object).ok()?).ok()?;
        if facts.len() > FACTS_LIMIT {
            facts = Vec::new();
        }
        Some(PodContent { facts: facts.into_boxed_slice(), has_ipv6 })
    }
}

/// Returns the pod as the runtime names it: a static pod by its hash, from an annotation. Ignores a
/// UID with dashes there: the author of a pod could claim the UID of another pod.
pub fn runtime_pod(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = match annotations.get(STATIC_POD_UID) {
        Some(hash) if !hash.contains('-') => hash,
        _ => uid,
    };
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}
