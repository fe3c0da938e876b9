//! Captures faults of plugin calls: calls that fail, and pods that start with a problem.

use std::fs::{self, File};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use rcgen::{CertificateParams, date_time_ymd};
use serde_json::{Value, json};

use super::fault::Fault;
use crate::agent_with_api::in_parallel;
use crate::api::Api;
use crate::call::Outcome;
use crate::child::{has_strace, without_netlink};
use crate::server::Identity;

/// Name of the fault's section, and function that causes the fault and returns the failed call.
type Row = (&'static str, fn(&mut Fault) -> Outcome);

/// Faults that the agent also reports in an Event on the pod.
const WITH_EVENT: &[Row] = &[
    ("annotation-invalid", |fault| {
        fault.change_pod(|pod| pod["metadata"]["annotations"] = skip_outbound_ports("mysql"));
        fault.add().run()
    }),
    ("sandboxed-pod", |fault| {
        fault.change_pod(|pod| pod["spec"]["runtimeClassName"] = json!("gvisor"));
        fault.add().run()
    }),
    ("network-namespace-missing", |fault| {
        fault.add().env("CNI_NETNS", "/var/run/netns/cni-1234").run()
    }),
    ("plugin-entry-invalid", |fault| fault.add().linkerd("proxy-uid", "2102").run()),
    ("request-denied", |fault| {
        let message = "pods \"web\" is forbidden: User \
                       \"system:serviceaccount:linkerd-cni:linkerd-cni-plugin\" cannot get resource \
                       \"pods\" in API group \"\" in the namespace \"ns\"";
        fault.refuse_pod(403, "Forbidden", message);
        fault.add().run()
    }),
    ("wrong-ca", |fault| {
        let other = Api::start();
        let kubeconfig = fault.plugin_uses(other.address, None);
        fault.add().set("kubernetes", kubeconfig).run()
    }),
    ("certificate-expired", |fault| {
        let mut params = CertificateParams::new(["127.0.0.1".into()]).unwrap();
        params.not_after = date_time_ymd(2001, 1, 1);
        let other = Api::start();
        let identity = Identity::new(&params);
        let kubeconfig = fault.plugin_uses(other.address, Some(&identity.ca));
        other.present(identity);
        fault.add().set("kubernetes", kubeconfig).run()
    }),
    ("api-server-error", |fault| {
        fault.refuse_pod(500, "", "etcdserver: request timed out");
        fault.add().run()
    }),
    ("unexpected-response", |fault| {
        fault.answer_pod(200, &json!("<html>Sign in</html>"));
        fault.add().run()
    }),
    ("kubeconfig-missing", |fault| {
        fault.scene.pause_between_passes();
        fs::remove_file(fault.scene.node.net("kubeconfig.json")).unwrap();
        let outcome = fault.add().run();
        fault.scene.agent.signal(Signal::SIGCONT);
        outcome
    }),
    ("no-iptables", |fault| fault.add().linkerd("iptables-mode", "nft").run_without_iptables()),
    ("kernel-too-old", |fault| {
        let add = fault.add().linkerd("iptables-mode", "native");
        let outcome = add.run_under(&["setarch", "--uname-2.6"]);
        let msg = outcome.error().1;
        fault.show(msg.rsplit_once("this kernel is ").unwrap().1, "4.4.302");
        outcome
    }),
    ("nf-tables-refused", |fault| {
        fault.add().linkerd("iptables-mode", "native").run_under(&without_netlink())
    }),
    ("xtables-lock", |fault| {
        let path = fault.scene.node.root().join("xtables.lock");
        let _held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        fault.show(path.to_str().unwrap(), "/run/xtables.lock");
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let holder = format!("process {} (\"{}\")", std::process::id(), own.trim());
        fault.show(&holder, "process N (\"NAME\")");
        let add = fault.add().linkerd("iptables-mode", "legacy").env("XTABLES_LOCKFILE", path);
        // Repeat the call if iptables was killed. On a busy machine, its wait of 5 s for the lock
        // may exceed the deadline of the plugin.
        let mut outcomes = std::iter::repeat_with(|| add.run());
        outcomes.find(|outcome| !outcome.stdout.contains("was killed")).unwrap()
    }),
];

/// Faults without an Event: the pod is gone or runs already, or the agent cannot reach the API
/// server either.
const WITHOUT_EVENT: &[Row] = &[
    ("api-server-unreachable", |fault| {
        fault.scene.api.state().down = true;
        let kubeconfig = fault.plugin_uses_no_server();
        fault.add().set("kubernetes", kubeconfig).run()
    }),
    ("api-server-timeout", |fault| {
        fault.scene.api.state().silent = true;
        fault.add().run()
    }),
    ("pod-not-found", |fault| {
        fault.refuse_pod(404, "NotFound", "pods \"web\" not found");
        fault.add().run()
    }),
    ("pod-replaced", |fault| {
        let other = json!("c0ffee00-0000-4000-8000-000000000002");
        fault.change_pod(|pod| pod["metadata"]["uid"] = other);
        fault.add().run()
    }),
    ("rules-missing", |fault| {
        fault.add().linkerd("iptables-mode", "native").run().succeeded();
        fault.namespaces.run("nft", &["delete", "table", "ip", "linkerd-cni"]);
        fault.meshed_call("CHECK").linkerd("iptables-mode", "native").run()
    }),
];

fn skip_outbound_ports(ports: &str) -> Value {
    json!({"config.linkerd.io/skip-outbound-ports": ports})
}

#[test]
fn each_fault_of_a_plugin_call_is_reported_as_documented() {
    let with_event = WITH_EVENT.iter().map(|row| (row, true));
    let rows = with_event.chain(WITHOUT_EVENT.iter().map(|row| (row, false)));
    let rows = rows.filter(|((name, _), _)| !name.starts_with("nf-tables") || has_strace());
    in_parallel(rows, |((name, call), has_event)| {
        let mut fault = Fault::new(name);
        let outcome = call(&mut fault);
        fault.pod_fails(&outcome);
        if has_event {
            fault.pod_event("LinkerdCNIFailed");
        }
        fault.assert_documented();
    });
}

/// Reason of the Event, part of the line in the agent's log, and start of the metric.
type Shown = [&'static str; 3];

const IGNORED: Shown =
    ["LinkerdCNIPortsIgnored", "mysql", "linkerd_cni_plugin_ignored_ports_total{"];
const BLOCKED: Shown = [
    "LinkerdCNIInitWithoutNetwork",
    "init containers without network",
    "linkerd_cni_plugin_pods_with_blocked_init_containers_total",
];
const DEGRADED: Shown = [
    "LinkerdCNIDegraded",
    "the plugin used only the annotations and the plugin entry",
    "linkerd_cni_plugin_degraded_total{",
];

/// Name of the fault's section, reports of the fault, and function that causes the fault.
type Reported = (&'static str, Shown, fn(&mut Fault));

/// Faults of pods that start anyway.
const REPORTED: &[Reported] = &[
    ("port-ignored", IGNORED, |fault| {
        let ports = skip_outbound_ports("mysql,5432");
        fault.change_pod(|pod| pod["metadata"]["annotations"] = ports);
        fault.add().run().succeeded();
    }),
    ("init-container-without-network", BLOCKED, |fault| {
        let containers = json!([{"name": "linkerd-network-validator"}, {"name": "migrate"}]);
        fault.change_pod(|pod| pod["spec"]["initContainers"] = containers);
        fault.add().run().succeeded();
    }),
    ("started-without-api-server", DEGRADED, |fault| {
        let kubeconfig = fault.plugin_uses_no_server();
        let marked = json!({
            "linkerd.io/inject": "enabled",
            "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
            "linkerd.io/proxy-version": "edge-26.8.3",
        });
        fault.add().set("kubernetes", kubeconfig).annotated(marked).run().succeeded();
    }),
];

#[test]
fn each_fault_of_a_pod_that_starts_is_reported_as_documented() {
    in_parallel(REPORTED, |(name, [reason, line, metric], cause)| {
        let mut fault = Fault::new(name);
        cause(&mut fault);
        fault.pod_event(reason);
        fault.log_line(line);
        fault.metrics(metric);
        fault.assert_documented();
    });
}

#[test]
fn container_that_runs_as_the_proxy_user_is_reported_as_documented() {
    let mut fault = Fault::new("proxy-user-shared");
    fault.change_pod(|pod| pod["spec"]["securityContext"] = json!({"runAsUser": 2102}));
    fault.add().run().succeeded();
    fault.pod_event("LinkerdCNIProxyUserShared");
    fault.log_line("run as the proxy's user");
    let outcome = fault.add().linkerd("strict-proxy-user", true).run();
    fault.pod_fails(&outcome);
    fault.assert_documented();
}

#[test]
fn rejected_token_is_reported_as_documented() {
    let mut fault = Fault::new("token-rejected");
    let mut state = fault.scene.api.state();
    state.tokens.retain(|token| token == "token-1");
    // Let token requests fail, so that the agent cannot replace the rejected token immediately.
    state.grant = 500;
    drop(state);
    let outcome = fault.add().run();
    fault.pod_fails(&outcome);
    fault.pod_event("LinkerdCNIFailed");
    fault.ready("could not be renewed");
    fault.assert_documented();
}

#[test]
fn failed_token_request_is_reported_as_documented() {
    let mut fault = Fault::new("no-token");
    fault.scene.api.state().grant = 503;
    // Start the agent as in a first installation, without a kubeconfig on the host.
    fault.scene.agent.kill();
    fs::remove_file(fault.scene.node.net("kubeconfig.json")).unwrap();
    fault.scene.agent = fault.scene.node.start();
    // Wait for the response: the agent first reports that it waits for the request.
    fault.ready("HTTP 503");
    fault.log_line("HTTP 503");
    fault.assert_documented();
}

#[test]
fn runtime_that_passes_no_annotations_is_reported_as_documented() {
    let mut fault = Fault::new("runtime-without-annotations");
    fault.change_pod(|pod| pod["spec"]["containers"] = json!([{"name": "app"}]));
    fault.call("ADD").run().succeeded();
    fault.log_line("skipped: ");
    fault.assert_documented();
}
