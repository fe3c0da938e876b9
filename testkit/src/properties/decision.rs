//! Decides on a pod like ADD, with a scripted API server. Asserts that a pod with a proxy starts
//! without redirect rules only for a documented reason.

use linkerd2_cni::cluster_lookup::read_facts;
use linkerd2_cni::cni::Error;
use linkerd2_cni::cni::args::{self, PodRef};
use linkerd2_cni::cni::{Command, Request, request};
use linkerd2_cni::config::Config;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::plugin::fetch_pod::Fetched;
use linkerd2_cni::plugin::pod_sources::RequestedPod;
use linkerd2_cni::pod::Decision;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::pod::skip::runtime_annotations;
use linkerd2_cni::pod_copy::NodeCopy;
use linkerd2_cni::redirect::Redirect;
use linkerd2_cni::verdict::{PodView, Verdict, verdict};
use serde_json::{Value, json};

use crate::node_copy::FakeCluster;

const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// The start of a pod: the pod, and the state that the plugin meets.
#[derive(Clone, Debug)]
pub struct Start {
    pub namespace: String,
    pub name: String,
    pub annotations: Annotations,
    pub containers: Vec<&'static str>,
    pub init_containers: Vec<&'static str>,
    /// Whether the runtime passes the pod's annotations.
    pub has_capability: bool,
    /// The plugin entry's `strict-annotations`.
    pub strict: bool,
    /// Whether the node's copy has the pod.
    pub copy: CopyState,
    pub namespace_annotations: Annotations,
    /// Failure of each API request. `None`: the requests succeed.
    pub api_error: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    Published,
    /// A live agent keeps the copy, and has not published the pod.
    Lacking,
    /// No live agent keeps the copy.
    Unkept,
}

pub const COPY_STATES: [CopyState; 3] =
    [CopyState::Published, CopyState::Lacking, CopyState::Unkept];
pub const EXCLUDED: &str = "kube-system";
pub const AGENT_NAMESPACE: &str = "linkerd-cni";
pub const API_ERRORS: [Failure; 8] = [
    Failure::Kubeconfig,
    Failure::ApiUnreachable,
    Failure::CertificateRejected,
    Failure::TokenRejected,
    Failure::RequestDenied,
    Failure::ApiError,
    Failure::UnexpectedResponse,
    Failure::PodNotFound,
];
const UID: u32 = 2102;

impl Start {
    fn has_proxy(&self) -> bool {
        self.containers.iter().chain(&self.init_containers).any(|name| *name == "linkerd-proxy")
            && !self.init_containers.contains(&"linkerd-init")
    }

    fn request(&self) -> Request {
        let mut stdin = json!({"cniVersion": "1.1.0", "name": "n", "linkerd": {
            "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": UID,
            "inbound-ports-to-ignore": ["4191"], "exclude-namespaces": [EXCLUDED],
            "strict-annotations": self.strict,
        }});
        if self.has_capability {
            stdin["runtimeConfig"] = json!({CAPABILITY: self.annotations});
        }
        let args = format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={}", self.namespace, self.name);
        let environment = super::runtime::environment(&args);
        request::read(&environment, &mut stdin.to_string().as_bytes())
            .unwrap_or_else(|refusal| panic!("{refusal:?}"))
    }

    fn object(&self) -> Value {
        json!({
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "annotations": self.annotations,
            },
            "spec": {
                "containers": containers(&self.containers),
                "initContainers": containers(&self.init_containers),
            },
        })
    }

    /// Reads the facts about the pod from the pod object, as the agent and the plugin do.
    fn facts(&self, pod: &PodRef) -> Result<Decision<PodFacts>, Error> {
        let object = serde_json::from_value(self.object()).expect("a pod");
        let mut cluster = FakeCluster {
            annotations: self.namespace_annotations.clone(),
            ..FakeCluster::default()
        };
        read_facts(object, pod, &mut cluster)
    }

    fn node_copy(&self, pod: &PodRef) -> NodeCopy {
        match self.copy {
            CopyState::Published => {
                let facts = self.facts(pod).expect("facts");
                let text = serde_json::to_string(&facts).expect("JSON");
                NodeCopy::Decides(serde_json::from_str(&text).expect("a copy"))
            }
            CopyState::Lacking => NodeCopy::Lacks,
            CopyState::Unkept => NodeCopy::Unkept,
        }
    }

    /// Requests the facts from the scripted API server.
    fn fetch(&self, pod: &PodRef) -> Fetched {
        let facts = match self.api_error {
            Some(failure) => Err(Error::new(failure, "scripted error")),
            None => self.facts(pod),
        };
        Fetched { facts, requests: 1, retries: 0 }
    }

    /// Decides on the pod as ADD does.
    pub fn decide(&self) -> Result<Decision<Redirect>, Error> {
        let request = self.request();
        assert_eq!(request.command, Command::Add);
        let config = Config::read_leniently(&request.config);
        let pod = args::parse_pod(&request.args)?.expect("a pod in CNI_ARGS");
        if let Verdict::Skipped(reason) = verdict(&config, &pod, PodView::Incomplete) {
            return Ok(Decision::Skip(reason));
        }
        let requested = RequestedPod {
            pod: &pod,
            annotations: runtime_annotations(&request.config),
            copy: self.node_copy(&pod),
        };
        let needs_request = requested.api_budget(&config, request.command).is_some();
        let fetched = if needs_request { Some(self.fetch(&pod)) } else { None };
        let facts = requested.decide(&config, request.command, fetched).facts?;
        match verdict(&config, &pod, PodView::from(&facts)) {
            Verdict::Redirected(resolved) => Ok(Decision::Redirect(resolved.redirect)),
            Verdict::Skipped(reason) => Ok(Decision::Skip(reason)),
            Verdict::Refused(refusal, _) => Err(refusal.error()),
            Verdict::Failed(error) => Err(error),
            verdict @ (Verdict::NotCalled(_) | Verdict::Undecided(_)) => panic!("{verdict:?}"),
        }
    }

    /// Fails if the pod has a proxy and starts without redirect rules, unless a documented reason
    /// applies.
    pub fn assert_not_bare(&self) {
        if let Ok(Decision::Skip(reason)) = self.decide() {
            assert!(
                !self.has_proxy() || self.may_be_skipped(),
                "{self:?} starts without redirect rules: {}",
                reason.text()
            );
        }
    }

    /// Whether one of the documented reasons applies: an excluded namespace, the agent's own pod,
    /// or annotations if the containers are unknown.
    fn may_be_skipped(&self) -> bool {
        self.namespace == EXCLUDED || self.is_agent() || self.may_be_skipped_by_annotations()
    }

    fn is_agent(&self) -> bool {
        let Some(suffix) = self.name.strip_prefix("linkerd-cni-") else {
            return false;
        };
        self.namespace == AGENT_NAMESPACE && !suffix.contains('-')
    }

    fn may_be_skipped_by_annotations(&self) -> bool {
        let are_containers_known = match self.copy {
            CopyState::Published => true,
            CopyState::Lacking => self.api_error.is_none(),
            CopyState::Unkept => false,
        };
        self.has_capability && !are_containers_known && !self.do_annotations_suggest_proxy()
    }

    fn do_annotations_suggest_proxy(&self) -> bool {
        self.annotations.iter().any(|(key, value)| {
            ["linkerd.io/proxy-version", "linkerd.io/trust-root-sha256"].contains(&key.as_str())
                || (key == "linkerd.io/created-by" && value.starts_with("linkerd/proxy-injector"))
        })
    }
}

fn containers(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| json!({"name": name})).collect()
}
