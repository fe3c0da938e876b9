use std::path::Path;
use std::time::Duration;

use clap::Parser;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use testkit::api::Api;

use super::*;
use crate::cluster_lookup::{ClusterLookup, read_facts};
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::cni::{Command, Request};
use crate::extension::{bypass, explain, fake};
use crate::failure::{self, Failure};
use crate::kube::object_reader::ReadFrom;
use crate::kube::types::{Pod, Service};
use crate::kube::{Client, Deadlines, LiteralAddress, kubeconfig};
use crate::plugin::add::add;
use crate::plugin::check::{Comparison, compare_with_new_rules};
use crate::plugin::pod_sources::PodSearch;
use crate::pod::annotation::Annotations;
use crate::pod::facts::object_facts;
use crate::record::CallResult;
use crate::repair::act::not_repaired::check_redirected;
use crate::repair::find::inspect::Inspector;
use crate::repair::find::stranded::{FoundBy, StrandedPod};
use crate::repair::settings::Settings;
use crate::verdict::outcome::Outcome;

/// A namespace without annotations.
struct NoAnnotations;

impl ClusterLookup for NoAnnotations {
    fn namespace(&mut self, _: &str) -> Result<Annotations, Error> {
        Ok(Annotations::new())
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        Err(Error::new(Failure::ApiError, "no Service"))
    }
}

/// A row of `tests.yaml`, applied to a meshed pod and to the plugin entry.
struct Row {
    name: String,
    /// The pod object. Its validator fails, so that the repair controller finds the pod.
    object: Value,
    entry: Value,
    verdict: Value,
    /// The reason with which `linkerd cni bypass` reports a refused pod.
    bypass_reason: Option<String>,
}

/// A row of `tests.yaml` as written: changes to a meshed pod and to the plugin entry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changes {
    namespace: Option<String>,
    name: Option<String>,
    #[serde(default)]
    annotations: Map<String, Value>,
    #[serde(default)]
    spec: Map<String, Value>,
    #[serde(default)]
    entry: Map<String, Value>,
    verdict: Option<Value>,
    bypass_reason: Option<String>,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, changes) in testkit::table::rows::<Changes>(include_str!("tests.yaml")) {
        let mut object = json!({
            "metadata": {
                "namespace": changes.namespace.as_deref().unwrap_or("shop"),
                "name": changes.name.as_deref().unwrap_or("web"),
                "annotations": changes.annotations,
                "labels": {"linkerd.io/control-plane-ns": "linkerd"},
            },
            "spec": {"containers": [
                {"name": "app"},
                {"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}},
            ]},
            "status": {"initContainerStatuses": [{
                "name": "linkerd-network-validator",
                "state": {"terminated": {"exitCode": 95}},
            }]},
        });
        for (key, value) in changes.spec {
            object["spec"][key] = value;
        }
        let mut entry = fake::entry();
        for (key, value) in changes.entry {
            entry["linkerd"][key] = value;
        }
        let verdict = changes.verdict.unwrap_or(json!("redirected"));
        let bypass_reason = changes.bypass_reason;
        rows.push(Row { name: name.to_string(), object, entry, verdict, bypass_reason });
    }
    rows
}

impl Row {
    fn pod(&self) -> Pod {
        serde_json::from_value(self.object.clone()).unwrap()
    }

    fn pod_ref(&self) -> PodRef {
        PodRef::from(&self.pod().metadata)
    }

    fn entry(&self) -> Object {
        serde_json::from_str(&self.entry.to_string()).unwrap()
    }

    fn config(&self) -> Config {
        Config::read(&self.entry()).unwrap()
    }

    /// A request for the pod with a netns that does not exist.
    fn request(&self, command: Command, config: Object) -> Request {
        let pod = self.pod_ref();
        Request {
            command,
            container_id: "abc".into(),
            netns: "/no/such/netns".into(),
            netns_override: false,
            args: format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
            config,
            cni_version: "1.0.0".into(),
        }
    }

    fn is_meshed(&self) -> bool {
        matches!(object_facts(self.pod()), Ok(Decision::Redirect(_)))
    }

    /// Name of the failure in the expected verdict.
    fn failure(&self) -> Option<&str> {
        self.verdict.get("failed").or(self.verdict.get("refused"))?.as_str()
    }

    /// Text of the skip reason in the expected verdict.
    fn skip_text(&self) -> Option<&'static str> {
        let reason = self.verdict.get("skipped")?.clone();
        Some(serde_json::from_value::<SkipReason>(reason).unwrap().text())
    }
}

fn as_json(verdict: &Verdict) -> Value {
    match verdict {
        Verdict::NotCalled(_) => json!("not called"),
        Verdict::Skipped(reason) => json!({"skipped": reason}),
        Verdict::Redirected(_) => json!("redirected"),
        Verdict::Refused(refusal, _) => json!({"refused": refusal.error().failure.row().name}),
        Verdict::Failed(error) => json!({"failed": error.failure.row().name}),
        Verdict::Undecided(_) => json!("undecided"),
    }
}

#[test]
fn verdict_depends_on_host_network_then_name_then_containers_then_redirect() {
    for row in rows() {
        let (pod, config) = (row.pod_ref(), row.config());
        let facts = read_facts(row.pod(), &pod, &mut NoAnnotations).unwrap();
        let view = if row.pod().spec.host_network {
            PodView::NotCalled(NotCalled::HostNetwork)
        } else {
            PodView::from(&facts)
        };
        assert_eq!(as_json(&verdict(&config, &pod, view)), row.verdict, "{}", row.name);
    }
}

#[test]
fn only_excluded_namespaces_and_agent_pods_are_decided_by_name() {
    for row in rows() {
        let found = as_json(&verdict(&row.config(), &row.pod_ref(), PodView::Incomplete));
        let by_name = [json!({"skipped": "excludedNamespace"}), json!({"skipped": "agentPod"})];
        let is_by_name = by_name.contains(&row.verdict);
        let wanted = if is_by_name { row.verdict.clone() } else { json!("undecided") };
        assert_eq!(found, wanted, "{}", row.name);
    }
}

/// The netns does not exist, so ADD fails for a redirected pod when it opens the netns.
#[test]
fn add_follows_the_verdict() {
    for row in rows() {
        if row.verdict == "not called" {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut stdin = row.entry.clone();
        let api = serve(&row);
        stdin["kubernetes"]["kubeconfig"] = json!(write_kubeconfig(&api, dir.path()));
        let request = row.request(Command::Add, serde_json::from_str(&stdin.to_string()).unwrap());
        let outcome = add(&request, &Config::read(&request.config).unwrap());
        match row.skip_text() {
            Some(text) => {
                assert_eq!(outcome.record.result, CallResult::Skipped(text.into()), "{}", row.name);
            }
            None => {
                let wanted = row.failure().unwrap_or("invalid-netns");
                let error = outcome.output.unwrap_err();
                assert_eq!(error.failure.row().name, wanted, "{}: {error}", row.name);
            }
        }
    }
}

/// The netns does not exist, so CHECK fails for a redirected pod when it opens the netns. CHECK
/// also opens the netns of a pod that ADD refuses now, because the pod may run with earlier rules.
#[test]
fn check_follows_the_verdict() {
    for row in rows() {
        if row.verdict == "not called" {
            continue;
        }
        let (pod, config) = (row.pod_ref(), row.config());
        let facts = read_facts(row.pod(), &pod, &mut NoAnnotations);
        let search = PodSearch { facts, source: None, api_error: None, requests: 0, retries: 0 };
        let request = row.request(Command::Check, row.entry());
        let compared = compare_with_new_rules(&request, &config, &pod, search);
        if let Some(text) = row.skip_text() {
            assert!(
                matches!(&compared, Ok(Comparison::Skipped(reason)) if reason.text() == text),
                "{}: {compared:?}",
                row.name
            );
            continue;
        }
        let wanted = match row.verdict.get("failed") {
            Some(failure) => failure.as_str().unwrap(),
            None => "invalid-netns",
        };
        let error = compared.unwrap_err();
        assert_eq!(error.failure.row().name, wanted, "{}: {error}", row.name);
    }
}

#[test]
fn explain_and_bypass_report_the_verdict() {
    for row in rows() {
        let name = &row.name;
        let pod = row.pod_ref();
        let namespace = format!("/api/v1/namespaces/{}", pod.namespace);
        let mut cluster = fake::Cluster::healthy();
        cluster.put(&namespace, json!({"metadata": {"name": pod.namespace}}));
        cluster.put(&format!("{namespace}/pods/{}", pod.name), row.object.clone());
        cluster.put(&format!("{namespace}/pods"), json!({"items": [row.object]}));
        cluster.put(&format!("{namespace}/events"), json!({"items": []}));
        cluster.put(fake::CONFIG, json!({"data": {"cni_network_config": row.entry.to_string()}}));

        let explained = explain::explain(&cluster, "linkerd-cni", &pod.namespace, &pod.name);
        let explained = explained.unwrap();
        let text = explain::text(&explained);
        let report = bypass::fetch(&cluster, "linkerd-cni", Some(&pod.namespace)).unwrap();
        let report: Value = serde_json::from_str(&bypass::json(&report)).unwrap();
        let reported = &report["pods"][0];
        let first = &reported["bypasses"][0];
        assert_eq!(reported.is_null(), !row.is_meshed(), "{name}: {reported}");
        if row.verdict == "not called" {
            assert!(text.contains("not redirected: the plugin is not called"), "{name}: {text}");
            if row.is_meshed() {
                assert_eq!(first["reason"], "host-network", "{name}: {reported}");
            }
        } else if let Some(reason) = row.skip_text() {
            assert!(text.contains(&format!("Why:       {reason}\n")), "{name}: {text}");
            if row.is_meshed() {
                assert_eq!(first["reason"], "not-redirected", "{name}: {reported}");
                assert_eq!(first["what"], reason, "{name}: {reported}");
            }
        } else if let Some(failure) = row.failure() {
            let code = failure::TABLE.iter().find(|row| row.name == failure).unwrap().code;
            assert!(text.contains(&format!("(code {code})\n")), "{name}: {text}");
            match failure {
                "sandboxed-pod" => assert_eq!(first["reason"], "sandbox", "{name}: {reported}"),
                // The running pod keeps its rules.
                "shared-proxy-user" => {
                    let reason = row.bypass_reason.as_deref().unwrap();
                    assert!(has_reason(reported, reason), "{name}: {reported}");
                }
                _ => assert!(has_reason(reported, "unknown"), "{name}: {reported}"),
            }
        } else {
            assert!(text.contains("Decision:  redirected to the proxy\n"), "{name}: {text}");
            // The pod's validator fails, so it has no rules now.
            assert_eq!(explained.outcome(), Outcome::Wrong, "{name}: {text}");
            let reasons = ["host-network", "not-redirected", "sandbox"];
            assert!(!reasons.contains(&first["reason"].as_str().unwrap()), "{name}: {reported}");
        }
    }
}

/// Returns true if a reported pod has a path with this reason.
fn has_reason(reported: &Value, reason: &str) -> bool {
    let mut paths = reported["bypasses"].as_array().into_iter().flatten();
    paths.any(|path| path["reason"] == reason)
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

/// The netns does not exist, so the inspection of a pod fails unless the pod is skipped.
#[test]
fn repair_controller_ignores_exactly_the_pods_that_the_plugin_skips() {
    for row in rows() {
        if row.verdict == "not called" {
            assert_eq!(
                StrandedPod::from_object(&row.pod(), FoundBy::Validator),
                None,
                "{}",
                row.name
            );
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let api = serve(&row);
        let access = kubeconfig::read(Path::new(&write_kubeconfig(&api, dir.path()))).unwrap();
        let deadlines = Deadlines::per_phase(Duration::from_secs(5));
        let client = Client::new::<LiteralAddress>(&access, "test", deadlines).unwrap();
        let prefix = dir.path().to_str().unwrap();
        let flags = ["x", "--node-name=a", "--controller-pod-name=b", "--mount-prefix", prefix];
        let Flags { settings } = Flags::try_parse_from(flags).unwrap();
        let pod = StrandedPod::from_object(&row.pod(), FoundBy::Validator).unwrap();

        let checked = check_redirected(&pod, Some(&row.config()));
        let mut inspector = Inspector::new(client, row.config(), &settings, ReadFrom::Etcd);
        let inspected = inspector.inspect(&pod, object_facts(row.pod()).unwrap());
        let is_skipped = row.skip_text().is_some();
        assert_eq!(checked.is_err(), is_skipped, "{}", row.name);
        assert_eq!(matches!(inspected, Ok(None)), is_skipped, "{}: {inspected:?}", row.name);
    }
}

/// An API server with the row's pod, and a namespace without annotations.
fn serve(row: &Row) -> Api {
    let PodRef { namespace, name, .. } = row.pod_ref();
    let api = Api::start();
    let path = format!("/api/v1/namespaces/{namespace}");
    let object = json!({"metadata": {"name": namespace}}).to_string();
    api.answer(&format!("{path}/pods/{name}"), 200, &row.object.to_string());
    api.answer(&path, 200, &object);
    api
}

fn write_kubeconfig(api: &Api, dir: &Path) -> String {
    let path = dir.join("kubeconfig");
    std::fs::write(&path, api.kubeconfig()).unwrap();
    path.to_str().unwrap().to_owned()
}
