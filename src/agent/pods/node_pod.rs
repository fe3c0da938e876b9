//! A pod of the node, reduced to what its copy and the agent need.

use crate::agent::own_pod::SeenPod;
use crate::agent::runtime_proof::sandbox::Sandbox;
use crate::cni::args::PodRef;
use crate::kube::pod_list::FromPod;
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID};
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, object_facts};
use crate::pod::multus::is_attached;
use crate::pod::observed::Observed;
use crate::pod_copy::FACTS_LIMIT;

pub struct NodePod {
    /// The pod, with the UID that the runtime uses.
    pub pod: PodRef,
    /// What the object shows if this is the agent's own pod.
    pub seen: SeenPod,
    /// The pod's sandbox. `None` for a pod in the host's network.
    pub sandbox: Option<Sandbox>,
    /// What is published of the pod. `None` for a pod in the host's network, because the runtime
    /// does not call the plugin for it.
    pub content: Option<PodContent>,
}

/// What is published of a pod.
pub struct PodContent {
    /// A `Decision<ObjectFacts>` as JSON. The text needs a third of the memory of the value, which
    /// matters because all pods of a list are in memory at once. Empty if the text would be longer
    /// than [`FACTS_LIMIT`].
    pub facts: Box<[u8]>,
    /// This is not a part of `facts`, because it changes after the pod is published.
    pub observed: Observed,
    /// Whether Multus calls the plugin for the pod, if the plugin is called by Multus.
    pub is_attached: bool,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        if object.status.has_ended() {
            return None;
        }
        let pod = runtime_pod(&object.metadata);
        let seen = SeenPod::read(&object.metadata);
        let sandbox = Sandbox::read(&object);
        let content =
            if object.spec.host_network { None } else { Some(PodContent::from_object(object)?) };
        Some(NodePod { pod, seen, sandbox, content })
    }
}

impl PodContent {
    /// Returns the facts in the pod's object. `None` if their text is longer than [`FACTS_LIMIT`].
    pub fn own_facts(&self) -> Option<Decision<ObjectFacts>> {
        // Parsing fails only for the empty text, because this program has written every other text.
        serde_json::from_slice(&self.facts).ok()
    }

    fn from_object(object: Pod) -> Option<PodContent> {
        let observed = Observed::read(&object);
        let is_attached = is_attached(&object);
        let mut facts = serde_json::to_vec(&object_facts(object).ok()?).ok()?;
        if facts.len() > FACTS_LIMIT {
            facts = Vec::new();
        }
        Some(PodContent { facts: facts.into_boxed_slice(), observed, is_attached })
    }
}

/// Returns the pod with the UID that the runtime uses. For a static pod that is a hash, which is in
/// an annotation. A value with dashes in that annotation is ignored, because it is no hash: with
/// such a value, the author of a pod could claim the UID of another pod.
pub fn runtime_pod(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = match annotations.get(STATIC_POD_UID) {
        Some(hash) if !hash.contains('-') => hash,
        _ => uid,
    };
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}
