//! Kubernetes' own network tests, three times: without the plugin, with it, and with a proxy in
//! every pod.

use std::array;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testkit::child::{KilledOnDrop, must};
use testkit::cluster::helm::{Helm, NAMESPACE};
use testkit::cluster::kubectl::kubectl_with_stdin;
use testkit::cluster::{api, node, pods};

use crate::agents;
use crate::checks::Checks;

const TESTS: &str = r"\[sig-network\].*\[Conformance\]";

/// Number of tests that [`TESTS`] selects in Kubernetes 1.37.
const COUNT: usize = 47;

pub fn run(checks: &mut Checks) {
    let _dns = Dns::start();
    let mut without = Results::default();
    checks.run("Kubernetes' network tests without the plugin", || {
        without = Results::run_tests();
        assert_eq!((without.passed.len(), without.failed.len()), (COUNT, 0));
        without.summary()
    });
    checks.run("Kubernetes' network tests with the plugin", || {
        Helm::new().run("install", &[]);
        let with = Results::run_tests();
        assert_eq!(with, without);
        let pods = count_adds();
        assert!(matches!(pods, [0, (1..), 0]), "redirected, skipped, failed: {pods:?}");
        format!("{}; {} pods skipped", with.summary(), pods[1])
    });
    checks.run("Kubernetes' network tests with a proxy in every pod", || {
        kubectl_with_stdin("apply -f -", include_str!("injector.yaml"));
        let before = count_adds();
        let meshed = Results::run_tests();
        assert_eq!(meshed, without);
        let after = count_adds();
        let pods: [u64; 3] = array::from_fn(|index| after[index] - before[index]);
        assert!(matches!(pods, [(1..), 0, 0]), "redirected, skipped, failed: {pods:?}");
        format!("{}; {} pods redirected", meshed.summary(), pods[0])
    });
}

#[derive(Debug, Default, PartialEq)]
struct Results {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Results {
    /// Runs the tests.
    fn run_tests() -> Results {
        let directory = TempDir::new().unwrap();
        // The tests mostly wait, so more of them run at the same time than there are processors.
        let status = Command::new("ginkgo")
            .args(["--procs=4", "--no-color", "--timeout=25m", "--silence-skips"])
            .arg(format!("--focus={TESTS}"))
            .arg(format!("--output-dir={}", directory.path().display()))
            .arg("--json-report=report.json")
            .arg(must(Command::new("which").arg("e2e.test")).trim())
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
            if spec["LeafNodeType"] != "It" {
                continue;
            }
            let parents = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
            let texts = parents.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
            let name = texts.collect::<Vec<_>>().join(" ");
            match spec["State"].as_str().unwrap() {
                "passed" => {
                    results.passed.insert(name);
                }
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

/// Returns the numbers of ADDs since the agents started: redirected, skipped and failed.
fn count_adds() -> [u64; 3] {
    let mut sum = [0; 3];
    for agent in agents::by_node().into_values() {
        let path = format!("{}/{}:9991/proxy/metrics", pods::path(NAMESPACE), agent.name);
        let metrics = api::admin().get_text(&path).unwrap();
        for (sum, result) in sum.iter_mut().zip(["redirected", "skipped", "failed"]) {
            let name = "linkerd_cni_plugin_requests_total";
            let start = format!("{name}{{command=\"ADD\",result=\"{result}\"}} ");
            let count = metrics.lines().find_map(|line| line.strip_prefix(&start));
            *sum += count.unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// The cluster's DNS server. Dropping the value ends it.
struct Dns(#[expect(dead_code)] KilledOnDrop, #[expect(dead_code)] TempDir);

impl Dns {
    fn start() -> Dns {
        let directory = TempDir::new().unwrap();
        let node = node::list().remove(0);
        let address = node["status"]["addresses"][0]["address"].as_str().unwrap();
        let kubeconfig = std::env::var("KUBECONFIG").unwrap();
        let corefile = directory.path().join("Corefile");
        let text = format!(
            ".:53 {{\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n \
             kubeconfig {kubeconfig}\n }}\n}}\n"
        );
        fs::write(&corefile, text).unwrap();
        let dns = Command::new("coredns").arg("-conf").arg(&corefile).spawn();
        let dns = dns.expect("coredns runs; scripts/tools coredns builds it");
        kubectl_with_stdin("apply -f -", &include_str!("dns.yaml").replace("NODE", address));
        Dns(KilledOnDrop(dns), directory)
    }
}
