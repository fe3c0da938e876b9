//! What values change in the rendered objects, as a record for each row: the values, and each place
//! with what it has instead.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::helm::{Objects, Render, platforms, values};

/// Lists the differences between two renders, one line per place.
fn difference(place: &str, from: &Value, to: &Value, into: &mut Vec<String>) {
    match (from, to) {
        _ if from == to => {}
        (Value::Object(a), Value::Object(b)) if !a.is_empty() && !b.is_empty() => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let [from, to] = [a, b].map(|fields| fields.get(key).unwrap_or(&Value::Null));
                difference(&format!("{place}/{key}"), from, to, into);
            }
        }
        (_, Value::Null) => into.push(format!("{place} is missing")),
        _ => into.push(format!("{place}: {to}")),
    }
}

/// Returns the objects by kind and name, the pod template as `Pods`, and each list of items with
/// names as a map.
fn by_name(objects: &Objects) -> Value {
    let labels = objects.get("DaemonSet")["metadata"]["labels"].as_object().unwrap();
    let mut all = Map::new();
    for object in &objects.0 {
        let mut object = object.clone();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if object["kind"] == "DaemonSet" {
            let mut pods = object["spec"]["template"].take();
            // Changes with the ConfigMap.
            let checksum = pods["metadata"]["annotations"]["checksum/config"].take();
            assert_eq!(checksum.as_str().unwrap().len(), 64);
            all.insert("Pods".to_owned(), named_items(pods));
        } else {
            // Only where they differ from the DaemonSet's, which has one more.
            let own = object["metadata"]["labels"].as_object_mut().unwrap();
            for key in labels.keys().filter(|key| *key != "k8s-app") {
                own.entry(key).or_insert("missing".into());
            }
            own.retain(|key, value| labels.get(key) != Some(value));
        }
        if name == "linkerd-cni-config" {
            object["data"]["cni_network_config"] = objects.plugin();
        }
        all.insert(format!("{} {name}", object["kind"].as_str().unwrap()), named_items(object));
    }
    Value::Object(all)
}

/// Turns lists of items with `name` or `mountPath` into maps, so that an item more changes one place.
fn named_items(value: Value) -> Value {
    let name = |item: &Value| {
        let name = item.get("mountPath").or(item.get("name"))?;
        Some(name.as_str()?.replace('/', "."))
    };
    match value {
        Value::Array(items)
            if !items.is_empty() && items.iter().all(|item| name(item).is_some()) =>
        {
            let named = items.into_iter().map(|item| (name(&item).unwrap(), named_items(item)));
            Value::Object(named.collect())
        }
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(key, value)| (key, named_items(value))).collect(),
        ),
        value => value,
    }
}

/// Renders each row of values, and returns what each changes.
fn changes<'a>(rows: impl IntoIterator<Item = &'a str>) -> String {
    let default = by_name(&Render::new().objects());
    let mut text = String::new();
    for row in rows {
        let mut lines = Vec::new();
        let row = row.replace("DIGEST", &"0".repeat(64));
        let objects = Render::new().values(&values(&row)).objects();
        difference("", &default, &by_name(&objects), &mut lines);
        if lines.is_empty() {
            lines.push("nothing".to_owned());
        }
        let _ = writeln!(text, "{row}\n  {}", lines.join("\n  "));
    }
    text
}

#[test]
fn each_platform_changes_the_recorded_fields() {
    let names: Vec<String> =
        platforms().into_iter().map(|(name, _)| format!("platform: {name}")).collect();
    let of_the_user = [
        "platform: openshift, destCNIBinDir: /opt/plugins, cniConfFileName: own.conf, seLinuxOptions: {type: own_t}",
        "platform: openshift, networkAttachmentDefinition: {namespace: multus}",
        "platform: openshift, chained: true, openshift: {enabled: false}, networkAttachmentDefinition: {enabled: false}",
        "platform: gke, priorityClassName: own, iptablesMode: legacy",
        "platform: gke, resourceQuota: {enabled: false}",
        // The chart's defaults, such as on a node without the platform's directories.
        "platform: k3s, destCNIBinDir: /opt/cni/bin, destCNINetDir: /etc/cni/net.d",
        "platform: talos, iptablesMode: auto",
    ];
    let rows = names.iter().map(String::as_str).chain(of_the_user);
    let text = changes(rows);
    insta::assert_snapshot!(text);
}

#[test]
fn each_value_of_the_daemonset_changes_the_recorded_fields() {
    let text = changes([
        "nodeSelector: {pool: meshed, kubernetes.io/os: windows}",
        "podAnnotations: {own: 1, linkerd.io/inject: enabled, checksum/config: x}",
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {c: 3}}",
        // The chart's own labels and annotations win, except the recommended labels besides the name.
        "commonLabels: {common: 1, k8s-app: other, linkerd.io/cni-resource: 'false', app.kubernetes.io/name: cni, app.kubernetes.io/part-of: mesh}",
        "podLabels: {pod: true, k8s-app: other, app.kubernetes.io/name: cni, app.kubernetes.io/part-of: mesh}",
        "commonAnnotations: {team: 1, linkerd.io/created-by: x, helm.sh/hook: post-delete}",
        "serviceAccount: {annotations: {account: true}}",
        // Keys of older charts.
        "global: {a: 1}, enabled: true, partials: {global: {}}, namespace: x, installNamespace: true, enablePSP: true",
        "linkerdVersion: edge-1, cniPluginImage: x, cniPluginVersion: x, cniResourceLabel: x, createdByAnnotation: x, repairController: {image: {name: x}}",
        "dnsPolicy: Default",
        "terminationGracePeriodSeconds: '60'",
        "minReadySeconds: 0",
        "minReadySeconds: 15",
        // The ServiceAccount has the secrets, unless the chart creates none.
        "imagePullSecrets: [{name: mirror}]",
        "global: {imagePullSecrets: [mirror, {name: other}]}, imagePullSecrets: [{name: mirror}]",
        "extraObjects: [{kind: A, metadata: {name: '{{ .Release.Name }}-a', labels: {}}}, '{kind: B, metadata: {name: b, labels: {}}}']",
        "imagePullSecrets: [{name: mirror}], serviceAccount: {create: false}",
        // The default surge gives way to maxUnavailable.
        "updateStrategy: {rollingUpdate: {maxUnavailable: 2}}",
        "updateStrategy: {rollingUpdate: {maxUnavailable: 25%}}",
        "updateStrategy: {rollingUpdate: {maxSurge: 10%}}",
        "updateStrategy: {rollingUpdate: {maxSurge: 3, maxUnavailable: null}}",
        "updateStrategy: {rollingUpdate: {maxSurge: null, maxUnavailable: 1}}",
        // Without a toleration of the startup taint the agent is never scheduled, and the taint stays.
        "startupTaint: a.b/c",
        "startupTaint: a.b/c, tolerations: null",
        "startupTaint: a.b/c, tolerations: [{operator: Exists, effect: NoSchedule}]",
        "startupTaint: a.b/c, tolerations: []",
        "tolerations: []",
        // A policy limits a permission, and is rendered exactly with it.
        "startupTaint: a.b/c, admissionPolicy: {enabled: false}",
        "startupTaint: a.b/c, rbac: {create: false}",
        "rbac: {create: false}, serviceAccount: {create: false}",
        "nodeCondition: true",
        "privileged: true",
        "securityContext: {capabilities: {add: []}, runAsUser: 0}",
        "seLinuxOptions: {type: spc_t, user: null}",
        "image: {version: v2.4.0}",
        "image: {version: 20261121}",
        "cliVersion: linkerd/cli edge-26.8.3",
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn each_value_of_the_agent_changes_the_recorded_fields() {
    let text = changes([
        "logFormat: json",
        "resyncSeconds: 60",
        // Without the watch the agent lists no pods.
        "watchPods: false",
        "cniConfFileName: 10-a.conflist",
        "chained: false",
        "ownConfig: true",
        "requireNetworkPlugins: false",
        // Without the self-test the agent needs no capability in network namespaces.
        "selfTest: false",
        "adminPort: 8081",
        // Values of upstream's chart lack the port.
        "adminPort: null",
        "destCNINetDir: /etc/cni, destCNIBinDir: /etc/cni/",
        "startupProbe: {failureThreshold: 120}",
        "readinessProbe: {periodSeconds: 5, timeoutSeconds: null}",
        "livenessProbe: {initialDelaySeconds: 10}",
        "extraEnv: [{name: RUST_BACKTRACE, value: '1'}]",
        "extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /a, readOnly: true}]",
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn each_value_of_the_plugin_entry_and_the_test_pod_changes_the_recorded_fields() {
    let text = changes([
        "inboundProxyPort: 5143",
        "inboundProxyPort: '5143'",
        "outboundProxyPort: 5140",
        "proxyAdminPort: 1, proxyControlPort: 2",
        "proxyUID: 1000660000",
        "proxyUID: '12102'",
        // Not the UID of the container that connects.
        "proxyUID: 65534",
        "proxyGID: -1",
        "proxyGID: null",
        "proxyGID: 0",
        "proxyGID: '2102'",
        "portsToRedirect: '8080,9090'",
        "portsToRedirect: ' 8080 , 9090,'",
        "portsToRedirect: 8080",
        "portsToRedirect: [8080, '9090']",
        "portsToRedirect: [], ignoreInboundPorts: [], ignoreOutboundPorts: []",
        "ignoreInboundPorts: '80,100-200'",
        "ignoreInboundPorts: 25",
        "ignoreInboundPorts: ' '",
        "ignoreInboundPorts: [22, '8000-8100']",
        // Upstream's agent passes invalid elements on, too.
        r#"ignoreInboundPorts: 'http,80;90,30-20,"\,65536-65539'"#,
        "ignoreOutboundPorts: ''",
        "ignoreOutboundPorts: '443, 1000'",
        "ignoreOutboundPorts: '443,'",
        "ignoreOutboundPorts: 443",
        "ignoreOutboundPorts: [25]",
        "strictAnnotations: true",
        "strictProxyUser: true",
        "sandboxedRuntimeClasses: [secure]",
        "sandboxedRuntimeClasses: []",
        "sandboxedRuntimeClasses: [gvisor, kata, runsc]",
        "skipSubnets: ''",
        "skipSubnets: '10.0.0.0/8, fd00::/8'",
        "skipInboundSubnets: '10.0.0.0/8, fd00::/8'",
        "skipOutboundSubnets: '10.0.0.0/8, fd00::/8'",
        "useWaitFlag: true",
        "iptablesMode: legacy",
        "iptablesMode: native",
        "iptablesMode: null",
        "disableIPv6: auto",
        "disableIPv6: false",
        "disableIPv6: null",
        "excludeNamespaces: [kube-system]",
        "excludeNamespaces: []",
        "apiRetrySeconds: '20'",
        "logLevel: debug",
        // Upstream accepts any case, and takes an empty level for its default.
        "logLevel: Debug",
        "logLevel: ''",
        // The test pod connects to ports that are redirected.
        "ignoreInboundPorts: 20000-20002, ignoreOutboundPorts: '1404,20001'",
        "portsToRedirect: 8080, ignoreInboundPorts: 8080",
        "ignoreInboundPorts: 1-65535",
        // A connection to the proxy's own port succeeds without redirection.
        "inboundProxyPort: 20001, outboundProxyPort: 1404",
        // Without redirection there is no test pod.
        "excludeNamespaces: [linkerd-cni]",
        "ignoreOutboundPorts: 1-65535",
        "chained: false",
        "chained: false, networkAttachmentDefinition: {enabled: true}",
    ]);
    insta::assert_snapshot!(text);
}

const RESOURCES: [&str; 5] = [
    "{cpu: {request: 20m}, memory: {request: '', limit: null}}",
    "{cpu: {request: 0.03, limit: 1}, memory: {request: 16777216}}",
    "{ephemeral-storage: {limit: 1Mi}}",
    // A default request above the limit would be rejected. Kubernetes requests the limit.
    "{memory: {limit: 8Mi}, cpu: {limit: 5m}}",
    "{cpu: {request: 0}, memory: {request: '0'}}",
];

#[test]
fn resources_change_the_recorded_fields() {
    let agent = RESOURCES.map(|row| format!("resources: {row}"));
    let repair = RESOURCES.map(|row| format!("repairController: {{resources: {row}}}"));
    let rows = agent.iter().chain(&repair).map(String::as_str);
    let text = changes(rows);
    insta::assert_snapshot!(text);
}

#[test]
fn each_value_of_the_repair_controller_changes_the_recorded_fields() {
    let text = changes([
        "repairController: {enabled: false}",
        "repairController: {mode: delete}",
        "repairController: {mode: label}",
        "repairController: {mode: report}",
        "repairController: {mode: report, auditIntervalSeconds: 300}",
        "repairController: {ratePerMinute: '10'}",
        "repairController: {deleteUnmanaged: true}",
        "repairController: {logLevel: debug, logFormat: json}",
        "repairController: {enableSecurityContext: false}",
        "repairController: {readinessProbe: {failureThreshold: 3}, livenessProbe: {timeoutSeconds: 4}}",
        "repairController: {extraEnv: [{name: RUST_BACKTRACE, value: '1'}]}",
        "adminPort: 8081",
        "adminPort: 9990, repairController: {adminPort: 9992}",
        // Both containers have the image.
        "image: {name: a/b/c, version: v1}",
        "image: {name: a/b, version: 'v1@sha256:DIGEST'}",
        "global: {imageRegistry: example.com}",
        "global: {imageRegistry: 'example.com:5000/proxy'}",
        // A path with which the registry ends is not repeated.
        "global: {imageRegistry: example.com/linkerd}",
        "global: {imageRegistry: example.com/a/b}, image: {name: cr.l5d.io/a/b/c}",
        "global: {imageRegistry: example.com}, image: {name: localhost/a}",
        "global: {imageRegistry: example.com}, image: {name: 'localhost:5000/a/b'}",
        // These names have no registry.
        "global: {imageRegistry: example.com}, image: {name: a/b}",
        "global: {imageRegistry: example.com}, image: {name: a}",
        // A ServiceAccount of this name is the subject of each binding.
        "serviceAccount: {name: '123'}, startupTaint: a.b/c, openshift: {enabled: true}",
        // Helm deletes the Role of the agent, but not the user's ServiceAccount. The API server would
        // refuse to tell the agent that its DaemonSet is gone, so the plugin would stay on the nodes.
        "serviceAccount: {create: false, name: mine}, commonAnnotations: {team: a}",
        // The controller reads the net dir that is mounted.
        "platform: k3s",
        "admissionPolicy: {enabled: false}",
        "rbac: {create: false}",
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn each_optional_object_is_rendered_as_recorded() {
    let text = changes([
        "podMonitor: {enabled: true}",
        "podMonitor: {enabled: true}, repairController: {enabled: false}",
        "podMonitor: {enabled: true, labels: {release: a, linkerd.io/cni-resource: 'no', app.kubernetes.io/part-of: b}}",
        // Metrics have the node's name beside the user's labels.
        "podMonitor: {enabled: true, relabelings: [{targetLabel: a}], metricRelabelings: [{regex: b}]}",
        // A PodMonitor selects pods of its own namespace only, unless it names others.
        "podMonitor: {enabled: true, namespace: linkerd-cni}",
        "podMonitor: {enabled: true, namespace: monitoring, annotations: {a: 1}}",
        "networkPolicy: {enabled: true}, adminPort: 8081",
        // The quota has the priority class of the pods.
        "resourceQuota: {enabled: true}",
        "resourceQuota: {enabled: true}, priorityClassName: system-cluster-critical",
        "networkAttachmentDefinition: {enabled: true}",
        "networkAttachmentDefinition: {annotatePods: true, namespace: multus}",
        "openshift: {enabled: true}",
        "destCNINetDir: /etc/cni, destCNIBinDir: /etc/cni/",
    ]);
    insta::assert_snapshot!(text);
}
