//! Properties that hold for every input of the fuzz targets. The suite `properties` checks them for
//! the targets' seeds at every commit, and `scripts/checks/fuzz` for inputs that the fuzzer makes.

use std::sync::LazyLock;

use linkerd2_cni::cni::args;
use linkerd2_cni::cni::object::Object;
use linkerd2_cni::config::Config;
use linkerd2_cni::kube::types::Pod;
use linkerd2_cni::plugin::add::prev_result_has_ipv6;
use linkerd2_cni::pod::annotation::{Annotations, CREATED_BY, INJECT, TABLE};
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::pod::{Decision, mesh, skip};
use linkerd2_cni::redirect::Family;
use linkerd2_cni::redirect::rules::{install_script, rules};

use super::decision::{API_ERRORS, COPY_STATES, Start};
use super::runtime;

/// Checks that the plugin prints a result or an error object for this stdin.
///
/// # Panics
/// If the plugin prints anything else.
pub fn stdin_gets_a_cni_output(stdin: &[u8]) {
    for args in ["", runtime::POD] {
        let stdout = runtime::add(args, stdin);
        assert!(runtime::is_cni_output(&stdout), "{stdout:?}");
    }
    if let Ok(config) = serde_json::from_slice::<Object>(stdin) {
        let _ = prev_result_has_ipv6(&config);
        let _ = skip::runtime_annotations(&config);
    }
}

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let text =
        r#"{"linkerd":{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":2102}}"#;
    let config = serde_json::from_str(text).expect("an object");
    Config::read(&config).expect("a configuration")
});

/// Checks that the response of an API server to a request for a pod becomes rules or an error.
///
/// # Panics
/// If a value in the response ends the comment of a rule, so that another rule could follow.
pub fn pod_becomes_rules_or_an_error(response: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(response) else {
        return;
    };
    let Ok(Decision::Redirect(proxy)) = mesh::find_proxy(&pod) else {
        return;
    };
    let facts = PodFacts { annotations: pod.metadata.annotations, proxy, ..PodFacts::default() };
    let Ok(redirect) = CONFIG.redirect(&facts) else {
        return;
    };
    for family in [Family::Ipv4, Family::Ipv6] {
        let script = install_script(&rules(&redirect, family), true, &[]);
        // A quotation mark or the end of a line in a comment would end the comment.
        for rule in script.lines().filter(|line| line.starts_with("-A ")) {
            assert_eq!(rule.matches('"').count(), 2, "{rule}");
        }
    }
}

const CONTAINERS: [&[&str]; 4] = [&["app"], &["app", "linkerd-proxy"], &["linkerd-init"], &[]];

/// Returns the key of the annotation that KEY stands for in a line of [`parse_start`]: KEY itself,
/// or if it is a number, the annotation of Linkerd with this number.
fn annotation_key(text: &str) -> String {
    let mut keys: Vec<&str> = TABLE.iter().map(|row| row.key).collect();
    keys.extend([INJECT, CREATED_BY]);
    if let Ok(number) = text.parse::<usize>()
        && let Some(key) = keys.get(number)
    {
        return (*key).to_owned();
    }
    text.to_owned()
}

/// Whether the runtime could pass this namespace and name in `CNI_ARGS`.
fn is_pod_name(namespace: &str, name: &str) -> bool {
    let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    matches!(args::parse_pod(&args), Ok(Some(_)))
}

/// Parses a pod and the state that the plugin meets. The lines are:
///
/// 1. one byte for each switch;
/// 2. the namespace;
/// 3. the name of the pod;
/// 4. and further: annotations `KEY=VALUE` of the pod, or `n:KEY=VALUE` of the namespace. KEY may
///    be the number of an annotation of Linkerd.
fn parse_start(text: &str) -> Option<Start> {
    let mut lines = text.lines();
    let switches = lines.next()?.as_bytes();
    let switch = |index: usize| usize::from(switches.get(index).copied().unwrap_or_default());
    let namespace = lines.next()?;
    let name = lines.next()?;
    if !is_pod_name(namespace, name) {
        return None;
    }
    let mut annotations = Annotations::default();
    let mut namespace_annotations = Annotations::default();
    for line in lines {
        let (key, value) = line.split_once('=')?;
        match key.strip_prefix("n:") {
            Some(key) => namespace_annotations.insert(annotation_key(key), value.to_owned()),
            None => annotations.insert(annotation_key(key), value.to_owned()),
        };
    }
    Some(Start {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        annotations,
        containers: CONTAINERS[switch(0) % CONTAINERS.len()].to_vec(),
        init_containers: CONTAINERS[switch(1) % CONTAINERS.len()].to_vec(),
        has_capability: switch(2) % 2 == 0,
        copy: COPY_STATES[switch(3) % COPY_STATES.len()],
        strict: switch(4) % 2 == 1,
        namespace_annotations,
        api_error: Some(API_ERRORS[switch(5) % API_ERRORS.len()]),
    })
}

/// Checks that a pod with a proxy starts with redirect rules unless there is a documented reason,
/// whatever its name, its annotations and its ports are.
///
/// # Panics
/// If the pod starts without redirect rules and without a documented reason.
pub fn meshed_pod_is_not_bare_without_reason(text: &str) {
    if let Some(start) = parse_start(text) {
        start.assert_not_bare();
    }
}
