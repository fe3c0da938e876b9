//! Kubernetes' own network tests, three times: without the plugin, with it, and with a proxy in every pod.

use std::array;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agents;
use crate::checks::Checks;
use crate::helm::{Helm, NAMESPACE};
use crate::pods::{apply, kubectl};

/// Regular expression for the names of the tests (ginkgo's `--focus`).
const TESTS: &str = r"\[sig-network\].*\[Conformance\]";

/// Number of these tests in Kubernetes 1.35.
const COUNT: usize = 47;

/// Runs the tests, and compares which of them pass.
pub fn run(checks: &mut Checks) {
    let _dns = Dns::start();
    let mut without = Results::default();
    checks.run("Kubernetes' network tests without the plugin", || {
        without = Results::of_run();
        assert_eq!((without.passed.len(), without.failed.len()), (COUNT, 0));
        without.summary()
    });
    checks.run("Kubernetes' network tests with the plugin", || {
        Helm::new().run("install", &[]);
        let with = Results::of_run();
        assert_eq!(with, without);
        let pods = adds();
        assert!(matches!(pods, [0, (1..), 0]), "redirected, skipped, failed: {pods:?}");
        format!("{}; {} pods skipped", with.summary(), pods[1])
    });
    checks.run("Kubernetes' network tests with a proxy in every pod", || {
        put_proxy_into_each_pod();
        let before = adds();
        let meshed = Results::of_run();
        assert_eq!(meshed, without);
        let after = adds();
        let pods: [u64; 3] = array::from_fn(|index| after[index] - before[index]);
        assert!(matches!(pods, [(1..), 0, 0]), "redirected, skipped, failed: {pods:?}");
        format!("{}; {} pods redirected", meshed.summary(), pods[0])
    });
}

/// Names of the tests that passed and of those that failed.
#[derive(Debug, Default, PartialEq)]
struct Results {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Results {
    /// Runs the tests.
    fn of_run() -> Results {
        let directory = TempDir::new().unwrap();
        // They mostly wait, so that more of them run at a time than there are processors.
        let status = Command::new("ginkgo")
            .args(["--procs=4", "--no-color", "--timeout=25m", "--silence-skips"])
            .arg(format!("--focus={TESTS}"))
            .arg(format!("--output-dir={}", directory.path().display()))
            .arg("--json-report=report.json")
            .arg(program("e2e.test"))
            .arg("--")
            .arg(format!("--kubeconfig={}", std::env::var("KUBECONFIG").unwrap()))
            .args(["--provider=skeleton", "--dump-logs-on-failure=false"])
            .stdin(Stdio::null())
            .status()
            .expect("ginkgo runs; scripts/tools kubernetes-e2e builds it");
        println!("ginkgo: {status}");
        let report = fs::read(directory.path().join("report.json")).unwrap();
        let suites: Value = serde_json::from_slice(&report).unwrap();
        let mut results = Results::default();
        for spec in suites[0]["SpecReports"].as_array().unwrap() {
            let parents = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
            let texts = parents.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
            let name = texts.collect::<Vec<_>>().join(" ");
            match spec["State"].as_str().unwrap() {
                _ if spec["LeafNodeType"] != "It" => {}
                "passed" => drop(results.passed.insert(name)),
                "skipped" | "pending" => {}
                _ => {
                    println!("{name}: {}", spec["Failure"]["Message"]);
                    results.failed.insert(name);
                }
            }
        }
        results
    }

    fn summary(&self) -> String {
        let failed: Vec<&str> = self.failed.iter().map(String::as_str).collect();
        let failed = if failed.is_empty() { "none".to_owned() } else { failed.join(", ") };
        format!("{} passed; failed: {failed}", self.passed.len())
    }
}

/// Path of a program.
fn program(name: &str) -> String {
    let found = Command::new("which").arg(name).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

/// Number of pods that the plugins of all nodes redirected, skipped and failed to redirect.
fn adds() -> [u64; 3] {
    let mut sum = [0; 3];
    for agent in agents::by_node().into_values() {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:9991/proxy/metrics", agent.name);
        let metrics = kubectl(&["get", "--raw", &path]);
        for (sum, result) in sum.iter_mut().zip(["redirected", "skipped", "failed"]) {
            let name = "linkerd_cni_plugin_requests_total";
            let start = format!("{name}{{command=\"ADD\",result=\"{result}\"}} ");
            let count = metrics.lines().find_map(|line| line.strip_prefix(&start));
            *sum += count.unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// The cluster's DNS server, a process on the node. Dropping the value stops it.
struct Dns(Child, #[expect(dead_code)] TempDir);

impl Dns {
    fn start() -> Dns {
        let directory = TempDir::new().unwrap();
        let node = kubectl("get nodes -o jsonpath={.items[0].status.addresses[0].address}");
        let kubeconfig = std::env::var("KUBECONFIG").unwrap();
        let corefile = directory.path().join("Corefile");
        let text = format!(
            ".:53 {{\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n \
             kubeconfig {kubeconfig}\n }}\n}}\n"
        );
        fs::write(&corefile, text).unwrap();
        let dns = Command::new("coredns").arg("-conf").arg(&corefile).spawn();
        let dns = dns.expect("coredns runs; scripts/tools coredns builds it");
        let ports = ["UDP", "TCP"].map(
            |protocol| json!({"name": protocol.to_lowercase(), "port": 53, "protocol": protocol}),
        );
        apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            // As scripts/cluster writes it into kubelet's configuration.
            "spec": {"clusterIP": "10.96.0.10", "ports": ports},
        }));
        apply(&json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [node]}],
        }));
        Dns(dns, directory)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a policy that adds a proxy to the pods of the tests, as Linkerd's injector does for meshed pods.
fn put_proxy_into_each_pod() {
    let api = "admissionregistration.k8s.io/v1beta1";
    let name = json!({"name": "linkerd-proxy"});
    apply(&json!({
        "apiVersion": api,
        "kind": "MutatingAdmissionPolicy",
        "metadata": name,
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {
                    "matchExpressions": [{"key": "e2e-framework", "operator": "Exists"}],
                },
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": ["CREATE"],
                }],
            },
            "matchConditions": [{
                "name": "pod-network",
                "expression": "!object.spec.?hostNetwork.orValue(false)",
            }],
            "mutations": [{
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": PROXY},
            }],
        },
    }));
    apply(&json!({
        "apiVersion": api,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": name,
        "spec": {"policyName": "linkerd-proxy"},
    }));
}

/// Adds a native sidecar that forwards connections. Each level of the Pod Security Standards allows it.
const PROXY: &str = r#"
(has(object.spec.initContainers) ? [] : [
    JSONPatch{op: "add", path: "/spec/initContainers", value: []}
]) + [
    JSONPatch{op: "add", path: "/spec/initContainers/-", value: Object.spec.initContainers{
        name: "linkerd-proxy",
        image: "docker.io/library/linkerd2-cni-probe:test",
        imagePullPolicy: "Never",
        restartPolicy: "Always",
        args: ["/probe", "forward", "0.0.0.0:4143", "0.0.0.0:4140"],
        securityContext: Object.spec.initContainers.securityContext{
            runAsUser: 2102,
            runAsNonRoot: true,
            allowPrivilegeEscalation: false,
            capabilities: Object.spec.initContainers.securityContext.capabilities{drop: ["ALL"]},
            seccompProfile: Object.spec.initContainers.securityContext.seccompProfile{type: "RuntimeDefault"}
        }
    }}
]"#;
