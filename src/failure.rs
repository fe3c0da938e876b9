//! The failures of a plugin call, each with a code, a name, a cause and a remedy. Pure.
//!
//! The plugin's CNI error, the Events on the pod, `linkerd cni check` and `docs/troubleshooting.md`
//! take their texts from [`TABLE`].

use std::collections::BTreeSet;

/// Code, name, cause and remedy of a failure.
#[derive(Debug)]
pub struct Row {
    failure: Failure,
    /// Code of the CNI error. CNI spec 1.1, section 5, "Error", defines 1 to 7, and
    /// [`pkg/types`](https://github.com/containernetworking/cni/blob/main/pkg/types/types.go) 8.
    /// Codes of 100 and above are linkerd-cni's own. Failures that an alert need not tell apart
    /// share a code.
    pub code: u32,
    pub name: &'static str,
    /// A clause that can follow "because".
    pub cause: &'static str,
    /// What to do. Becomes the CNI error's `details`, unless the plugin has a more specific remedy.
    pub remedy: &'static str,
}

macro_rules! failures {
    ($($failure:ident $code:literal $name:literal cause $cause:literal remedy $remedy:literal)*) => {
        /// A failure of the plugin. Names and codes never change their meaning, because programs
        /// rely on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Failure { $($failure),* }

        pub static TABLE: &[Row] = &[$(Row {
            failure: Failure::$failure,
            code: $code,
            name: $name,
            cause: $cause,
            remedy: $remedy,
        }),*];
    };
}

failures! {
    IncompatibleVersion 1 "incompatible-version"
        cause "the plugin does not support the cniVersion of the network config, or the command needs a newer one"
        remedy "correct cniVersion in the network config"
    InvalidEnvironment 4 "invalid-environment"
        cause "a CNI_* variable of the container runtime's call is missing or invalid"
        remedy "correct or update the container runtime"
    IoFailure 5 "io-failure"
        cause "the plugin could not read the container runtime's request or write its response"
        remedy "check the container runtime's log; the runtime retries the pod"
    DecodingFailure 6 "decoding-failure"
        cause "the network config is not valid JSON, or one of its members cannot be decoded"
        remedy "correct the network config"
    InvalidConfig 7 "invalid-config"
        cause "a setting of the plugin entry in the network config is missing or invalid"
        remedy "correct the chart's values; the chart renders the plugin entry in the ConfigMap linkerd-cni-config"
    InvalidProxyUser 7 "invalid-proxy-user"
        cause "the container linkerd-proxy runs as a user that redirect rules cannot exempt"
        remedy "set runAsUser of the container linkerd-proxy to the ID of the proxy, usually 2102"
    InvalidNetns 8 "invalid-netns"
        cause "the plugin could not enter the pod's network namespace"
        remedy "the pod's network namespace is gone, or the plugin may not enter it; the runtime retries the pod"
    Kubeconfig 100 "kubeconfig"
        cause "the plugin's kubeconfig is missing or invalid"
        remedy "the linkerd-cni agent on this node writes the kubeconfig: check that its pod is ready"
    ApiUnreachable 101 "api-unreachable"
        cause "the plugin could not reach the API server from the node"
        remedy "check that this node can reach the API server; the runtime retries the pod"
    CertificateRejected 101 "certificate-rejected"
        cause "the certificate of the API server is invalid for the plugin's kubeconfig"
        remedy "the CA or the server name in the kubeconfig does not match the certificate, or the node's clock is wrong; the linkerd-cni agent on this node writes the kubeconfig"
    TokenRejected 102 "token-rejected"
        cause "the API server rejected the token in the kubeconfig"
        remedy "the linkerd-cni agent on this node renews the token: check that its pod is ready"
    RequestDenied 102 "request-denied"
        cause "the API server denied the plugin's request"
        remedy "check that a ClusterRole allows the ServiceAccount of the token in the kubeconfig to get pods and namespaces"
    PodNotFound 103 "pod-not-found"
        cause "the API server does not know the pod or its namespace"
        remedy "the pod or its namespace was deleted, or the kubeconfig belongs to another cluster"
    PodReplaced 103 "pod-replaced"
        cause "a pod with another UID has taken the pod's name"
        remedy "this sandbox belongs to a deleted pod; kubelet removes it"
    ApiError 104 "api-error"
        cause "the API server responded with an error"
        remedy "check the API server; the runtime retries the pod"
    UnexpectedResponse 104 "unexpected-response"
        cause "the response of the API server is invalid"
        remedy "check that the server in the kubeconfig is the Kubernetes API server, and that no proxy truncates its responses; the runtime retries the pod"
    InvalidAnnotation 110 "invalid-annotation"
        cause "an annotation of the pod or its namespace is invalid"
        remedy "correct the annotation on the pod or on its namespace"
    SharedProxyUser 111 "shared-proxy-user"
        cause "a container runs as the proxy's user, or nothing proves that it cannot, so its connections could bypass the proxy"
        remedy "set runAsUser for each of these containers, neither to the proxy's user nor to 0, and allowPrivilegeEscalation: false; the chart's strictProxyUser=false admits the pod"
    SandboxedPod 112 "sandboxed-pod"
        cause "the pod's RuntimeClass runs it in a sandbox that ignores redirect rules, so its connections would bypass the proxy"
        remedy "inject the pod with the init container linkerd-init, which works inside the sandbox, or choose another RuntimeClass; sandboxes that keep to the rules are excluded with the chart's sandboxedRuntimeClasses"
    NoIptables 120 "no-iptables"
        cause "the node has no iptables program together with its -restore program"
        remedy "install iptables on the node, or set the chart's iptablesMode to auto"
    NoBackend 120 "no-backend"
        cause "neither nf_tables nor iptables is usable on the node"
        remedy "load the kernel modules nf_tables, nft_chain_nat and nft_redir, or install iptables on the node"
    RulesFailed 121 "rules-failed"
        cause "the redirect rules could not be installed"
        remedy "check that the node supports the backend of the chart's iptablesMode, or set another one"
    RulesTimedOut 121 "rules-timed-out"
        cause "the redirect rules could not be installed in time"
        remedy "check the load of the node and the plugin's log; the runtime retries the pod"
    RulesMissing 122 "rules-missing"
        cause "redirect rules of the pod are missing or changed"
        remedy "delete the pod; its replacement starts with all redirect rules"
    Internal 999 "internal"
        cause "the plugin failed in a way that it does not know"
        remedy "this is a bug in linkerd-cni, please report it"
}

impl Failure {
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    pub fn code(self) -> u32 {
        self.row().code
    }

    /// Returns the failure with this code and name. If the name is unknown, returns the first
    /// failure with this code, because the plugin on the node may have another version.
    pub fn find(code: u32, name: &str) -> Option<Failure> {
        let rows: Vec<&Row> = TABLE.iter().filter(|row| row.code == code).collect();
        let row = rows.iter().find(|row| row.name == name).or(rows.first())?;
        Some(row.failure)
    }

    /// Returns true if the API server or the credential failed, so that nothing is known about the
    /// pod. A missing pod is not an outage: it was deleted and will never start.
    pub fn is_outage(self) -> bool {
        matches!(self.code(), 100..=102 | 104)
    }
}

/// Returns the distinct codes of the failures for which `is_wanted` returns true.
pub fn codes(is_wanted: impl Fn(Failure) -> bool) -> BTreeSet<u32> {
    TABLE.iter().filter(|row| is_wanted(row.failure)).map(|row| row.code).collect()
}

/// Joins the causes of all failures with this code into one clause, to explain a metric that counts
/// by code. `None`: the code is unknown.
pub fn causes(code: &str) -> Option<String> {
    let rows = TABLE.iter().filter(|row| row.code.to_string() == code);
    let causes: Vec<&str> = rows.map(|row| row.cause).collect();
    if causes.is_empty() {
        return None;
    }
    Some(causes.join(", or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_one_row_and_a_unique_name() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.failure as usize, index, "{}", row.name);
            assert_eq!(Failure::find(row.code, row.name), Some(row.failure));
        }
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }

    #[test]
    fn unknown_failure_name_yields_the_first_failure_with_its_code() {
        assert_eq!(Failure::find(102, "of a later version"), Some(Failure::TokenRejected));
        assert_eq!(Failure::find(102, "kubeconfig"), Some(Failure::TokenRejected));
        assert_eq!(Failure::find(77, "kubeconfig"), None);
    }

    #[test]
    fn all_causes_of_a_code_are_joined() {
        let expected = "the API server rejected the token in the kubeconfig, or the API server denied \
                        the plugin's request";
        assert_eq!(causes("102").as_deref(), Some(expected));
        assert_eq!(causes("other"), None);
    }
}
