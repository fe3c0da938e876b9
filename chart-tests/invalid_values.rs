//! Invalid values, and the message that names each.

use std::fmt::Write as _;

use crate::helm::{Render, values};

/// Values as YAML. Helm rejects each.
const INVALID: &[&str] = &[
    "destCniNetDir: /x",
    "resources: {memroy: {limit: 1Mi}}",
    "resources: {memory: {limits: 1Mi}}",
    "repairController: {resources: {cpu: {limit: '1 core'}}}",
    "livenessProbe: {periodSecond: 1}",
    "readinessProbe: {periodSeconds: 0}",
    "minReadySeconds: -1",
    "extraVolumes: [{}]",
    "extraVolumes: [{name: cni-net-dir, emptyDir: {}}]",
    "extraVolumeMounts: [{name: a, mountPath: /a}]",
    "extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /tmp/}]",
    "extraVolumeMounts: [{name: a, path: /a}]",
    "repairController: {enabled: true, extraEnv: [{name: LINKERD_CNI_REPAIR_CONTROLLER_RATE, value: '1'}]}",
    "podMonitor: {relabelings: [{target_label: a}]}",
    "podMonitor: {metricRelabelings: [{action: delete}]}",
    "podMonitor: {namespace: A}",
    "commonAnnotations: {a: []}",
    "serviceAccount: {name: linkerd-cni-plugin}",
    "serviceAccount: {name: A}",
    "admissionPolicy: {tokenAudiences: ['']}",
    "admissionPolicy: {tokenAudiences: vault}",
    "iptablesMode: bogus",
    r#"logLevel: 'info","x":"y'"#,
    "logLevel: inof",
    "inboundProxyPort: 70000",
    "inboundProxyPort: '70000'",
    "outboundProxyPort: 0",
    "proxyUID: 0",
    "proxyGID: -2",
    // Strings, as from `--set-string` and scripts/install-cni.
    "proxyUID: '2147483648'",
    "proxyGID: '4294967296'",
    "proxyUID: 2147483648",
    // The plugin would fail every meshed pod.
    "portsToRedirect: '80,0'",
    "portsToRedirect: 0",
    "portsToRedirect: '80-90'",
    "portsToRedirect: [80, '90-100']",
    "portsToRedirect: ['70000']",
    "ignoreInboundPorts: [80, a]",
    "ignoreOutboundPorts: [70000]",
    "ignoreInboundPorts: [80, '90-80']",
    "portsToRedirect: '80,70000'",
    // No meshed pod would start. Upstream's plugin fails, too.
    "ignoreOutboundPorts: '90-80'",
    "ignoreInboundPorts: '80,70000', strictAnnotations: true",
    "ignoreOutboundPorts: '443, 1000', strictAnnotations: true",
    "strictAnnotations: 'true'",
    "strictProxyUser: 'true'",
    "sandboxedRuntimeClasses: [gVisor]",
    "skipSubnets: '10.0.0.0'",
    // The plugin would fail every meshed pod.
    "skipSubnets: '10.0.0.0/8,10.0.0.0/33'",
    "skipSubnets: '10.0.0.256/32'",
    "skipSubnets: 'fd00::/129'",
    "skipSubnets: 'fd00:1/64'",
    "skipInboundSubnets: '10.0.0.0'",
    "skipOutboundSubnets: '10.0.0.0/8,10.0.0.0/33'",
    "disableIPv6: 'false'",
    "privileged: 'false'",
    "destCNINetDir: etc/cni",
    r#"destCNINetDir: '/etc/cni" # x'"#,
    "destCNIBinDir: /opt/../etc",
    "image: {version: 1.5}",
    "tolerations: [{opertor: Exists}]",
    "updateStrategy: {rollingUpdate: {maxSurge: 2, maxUnavailable: 1}}",
    "updateStrategy: {rollingUpdate: {maxSurge: 0}}",
    "updateStrategy: {rollingUpdate: {maxUnavailable: '0%', maxSurge: 0}}",
    "adminPort: 9990, repairController: {enabled: true}",
    "platform: eks-auto",
    "repairController: {mode: restart}",
    "cniConfFileName: '../x.conf'",
    "excludeNamespaces: kube-system",
    "image: {version: 'v1@sha256:0123'}",
    "disableIPv6: maybe",
    "chained: 'false'",
    "apiRetrySeconds: 0",
    // Shorter than an uninstall can take.
    "terminationGracePeriodSeconds: 29",
    "terminationGracePeriodSeconds: '29'",
    "startupTaint: 'key=value:NoSchedule'",
    "startupTaint: a.b/c, nodeCondition: true",
    "chained: false, ownConfig: true",
    // The repair controller would not start.
    "repairController: {enabled: true, logLevel: inof}",
    "repairController: {enabled: true, logLevel: 'info,kube=loud'}",
    // The agent would not start.
    "ownConfig: true, cniConfFileName: '00-own.conf'",
    "image: {name: 'example.com/cni-plugin:v1'}",
    // Above the largest integer: another number would be rendered.
    "podAnnotations: {build: 12345678901234567890}",
    "commonLabels: {build: -1}",
    "extraEnv: [{name: SLEEP, value: x}]",
    "repairController: {enabled: true, mode: in-place, enableSecurityContext: false}",
    "serviceAccount: {create: false, name: default}",
    "privileged: true, securityContext: {allowPrivilegeEscalation: false}",
    // Names of other charts, and misspelt ones.
    "image: {repository: a/b}",
    "image: {registry: example.com}",
    "image: {Tag: x}",
    "image: {tag: v2.1.0}",
    "image: {digest: 'sha256:DIGEST'}",
    "ipv6: auto",
    "affinity: {nodeAffinity: {}}",
    "resources: {requests: {memory: 1Mi}}",
    "repairController: {resources: {limits: {memory: 1Mi}}}",
    "ProxyUid: 1",
    "livenessprobe: {}",
    "minReady: 1",
    "repairController: {intervalSeconds: 1}",
    "prometheusRule: {thresholds: {absentMinute: 1}}",
    "hostNetwork: true",
    "adminPort: 9992, repairController: {adminPort: 9992}",
    "prometheusRule: {alerts: {LinkerdCNIAbsent: {enabled: false}}}",
    "global: {imageRegistry: 'https://a'}",
    "global: {imagePullSecrets: a}",
    "extraObjects: {a: b}",
];

/// Returns the part of Helm's error that is about the values.
fn reasons(values_text: &str, render: Render) -> String {
    let values = values(&values_text.replace("DIGEST", &"0".repeat(64)));
    let error = render.values(&values).text().expect_err(values_text);
    let execution =
        error.split_once("execution error at (").and_then(|rest| rest.1.split_once("): "));
    match execution {
        Some((_, message)) => message.lines().next().unwrap().to_owned(),
        None => {
            error.lines().skip(2).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
        }
    }
}

#[test]
fn an_invalid_value_is_rejected_with_its_name_and_reason_by_helm_3_and_helm_4() {
    let mut text = String::new();
    for values in INVALID {
        let reasons = [Render::new(), Render::new().helm_3()].map(|render| reasons(values, render));
        assert_eq!(reasons[0], reasons[1], "{values}");
        let _ = writeln!(text, "{values}\n  {}", reasons[0].replace('\n', "\n  "));
    }
    insta::assert_snapshot!(text);
}
