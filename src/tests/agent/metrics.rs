//! The metrics of a running agent.

use std::os::unix::net::UnixDatagram;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::agent_with_api::Scene;
use crate::api::Api;
use crate::node::{CALICO, LIST};
use crate::promtool;
use crate::until::until;

#[test]
fn promtool_accepts_the_metrics_of_an_agent_that_has_counted_something() {
    let Scene { node, agent, .. } = Scene::start(&[]);
    until("the socket", || node.net(".linkerd-cni.sock").exists());
    let record = json!({
        "level": "error", "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
        "container_id": "c", "decision": "failed", "requests": 3, "retries": 2, "ms": 3,
        "error": {"code": 101, "msg": "no route to host"},
    });
    let writer = UnixDatagram::unbound().unwrap();
    writer.send_to(record.to_string().as_bytes(), node.net(".linkerd-cni.sock")).unwrap();
    let failures = r#"linkerd_cni_plugin_failures_total{command="ADD",code="101"}"#;
    until("the failure", || agent.metric(failures) == 1.0);
    assert_eq!(agent.metric("linkerd_cni_plugin_api_requests_total"), 3.0);
    assert_eq!(agent.metric("linkerd_cni_plugin_api_retries_total"), 2.0);
    let version = env!("CARGO_PKG_VERSION");
    let info = format!(r#"linkerd_cni_agent_build_info{{version="{version}"}}"#);
    assert_eq!(agent.metric(&info), 1.0);
    assert!(agent.metric(r#"linkerd_cni_agent_api_requests_total{status="2xx"}"#) >= 1.0);
    promtool::assert_clean(&agent.get("/metrics").1);
}

#[test]
fn a_removed_plugin_entry_is_counted_with_the_time_until_the_plugin_is_chained_again() {
    let Scene { node, agent, .. } = Scene::start(&[]);
    assert_eq!(agent.metric("linkerd_cni_agent_rechains_total"), 0.0);
    let gap = "linkerd_cni_agent_conflist_without_entry_seconds_total";
    let before = agent.metric(gap);
    node.replace(&node.net(LIST), CALICO.as_bytes());
    until("the plugin is chained again", || {
        agent.metric("linkerd_cni_agent_rechains_total") == 1.0
    });
    until("the time is counted", || agent.metric(gap) > before);
    assert!(node.chained(LIST));
    assert_eq!(agent.metric("linkerd_cni_agent_contention_active"), 0.0);
}

#[test]
fn the_end_of_the_token_on_the_host_is_a_metric() {
    let api = Api::start();
    api.state().life = 7200;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let Scene { agent, node: _node, .. } = Scene::start_with(api, &[]);
    let metric = "linkerd_cni_agent_token_expiration_timestamp_seconds";
    until("the end of the token", || agent.metric(metric) > now + 7000.0);
    assert!(agent.metric(metric) < now + 7500.0);
}
