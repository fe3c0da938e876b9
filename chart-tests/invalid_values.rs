//! Invalid values, and the part of the error message that names each.

use serde_json::{Value, json};

use crate::helm::rejection;

/// Invalid values, and part of the error message for each.
pub fn invalid() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"destCniNetDir": "/x"}), "additional properties 'destCniNetDir' not allowed"),
        (json!({"image": {"Tag": "x"}}), "at '/image': additional properties 'Tag' not allowed"),
        (
            json!({"image": {"repository": "a/b:v1"}}),
            "at '/image/repository': 'a/b:v1' does not match",
        ),
        (
            json!({"image": {"name": "a/b", "repository": "a/c"}}),
            "image.repository: image.name is set, too, to a/b",
        ),
        (
            json!({"image": {"version": "v2.0.0", "tag": "v2.1.0"}}),
            "image.tag: image.version is set, too, to v2.0.0",
        ),
        (json!({"image": {"upstream": "true"}}), "at '/image/upstream': got string"),
        (
            json!({"resources": {"limit": {}}}),
            "at '/resources': additional properties 'limit' not allowed",
        ),
        (
            json!({"resources": {"requests": {"memroy": "1Mi"}}}),
            "at '/resources/requests': additional properties 'memroy' not allowed",
        ),
        (
            json!({"repairController": {"resources": {"limits": {"cpu": "1 core"}}}}),
            "at '/repairController/resources/limits/cpu': '1 core' does not match",
        ),
        (
            json!({"livenessProbe": {"periodSecond": 1}}),
            "at '/livenessProbe': additional properties 'periodSecond' not allowed",
        ),
        (
            json!({"readinessProbe": {"periodSeconds": 0}}),
            "at '/readinessProbe/periodSeconds': minimum: got 0, want 1",
        ),
        (json!({"minReadySeconds": -1}), "at '/minReadySeconds': minimum: got -1, want 0"),
        (json!({"extraVolumes": [{}]}), "at '/extraVolumes/0': missing property 'name'"),
        (
            json!({"extraVolumes": [{"name": "cni-net-dir", "emptyDir": {}}]}),
            "extraVolumes: name cni-net-dir is set by the chart",
        ),
        (
            json!({"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]}),
            "extraVolumeMounts: the pods have no volume a",
        ),
        (
            json!({
                "extraVolumes": [{"name": "a", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "a", "mountPath": "/tmp/"}],
            }),
            "extraVolumeMounts: mountPath /tmp is set by the chart",
        ),
        (
            json!({"extraVolumeMounts": [{"name": "a", "path": "/a"}]}),
            "at '/extraVolumeMounts/0': additional properties 'path' not allowed",
        ),
        (
            json!({"repairController": {"enabled": true, "extraEnv": [
                {"name": "LINKERD_CNI_REPAIR_CONTROLLER_RATE", "value": "1"},
            ]}}),
            "repairController.extraEnv: LINKERD_CNI_REPAIR_CONTROLLER_RATE is set by the chart",
        ),
        (
            json!({"podMonitor": {"relabelings": [{"target_label": "a"}]}}),
            "at '/podMonitor/relabelings/0': additional properties 'target_label' not allowed",
        ),
        (
            json!({"podMonitor": {"metricRelabelings": [{"action": "delete"}]}}),
            "at '/podMonitor/metricRelabelings/0/action': value must be one of 'replace', 'keep'",
        ),
        (
            json!({"podMonitor": {"namespace": "A"}}),
            "at '/podMonitor/namespace': 'A' does not match",
        ),
        (json!({"commonAnnotations": {"a": []}}), "at '/commonAnnotations/a': got array"),
        (
            json!({"serviceAccount": {"name": "linkerd-cni-plugin"}}),
            "serviceAccount.name: linkerd-cni-plugin is the plugin's ServiceAccount",
        ),
        (json!({"serviceAccount": {"name": "A"}}), "at '/serviceAccount/name': 'A' does not match"),
        (
            json!({"iptablesMode": "bogus"}),
            "at '/iptablesMode': value must be one of 'auto', 'native', 'nft', 'legacy', 'plain'",
        ),
        (
            json!({"logLevel": "info\",\"x\":\"y"}),
            "at '/logLevel': 'info\",\"x\":\"y' does not match pattern",
        ),
        (
            json!({"logLevel": "inof"}),
            "logLevel: \"inof\" is not a log level: trace, debug, info, warn, error or off",
        ),
        (
            json!({"inboundProxyPort": 70000}),
            "at '/inboundProxyPort': maximum: got 70,000, want 65,535",
        ),
        (json!({"inboundProxyPort": "70000"}), "at '/inboundProxyPort': '70000' does not match"),
        (json!({"outboundProxyPort": 0}), "at '/outboundProxyPort': minimum: got 0, want 1"),
        (json!({"proxyUID": 0}), "at '/proxyUID': minimum: got 0, want 1"),
        (json!({"proxyGID": -2}), "at '/proxyGID': minimum: got -2, want -1"),
        // Strings, as from `--set-string` and scripts/install-cni.
        (json!({"proxyUID": "2147483648"}), "proxyUID: 2147483648 is above 2147483647"),
        (json!({"proxyGID": "4294967296"}), "proxyGID: 4294967296 is above 2147483647"),
        (json!({"proxyUID": 2_147_483_648_u32}), "at '/proxyUID': maximum: got"),
        // The plugin would fail every meshed pod.
        (json!({"portsToRedirect": "80,0"}), "at '/portsToRedirect': '80,0' does not match"),
        (json!({"portsToRedirect": 0}), "at '/portsToRedirect': minimum: got 0, want 1"),
        (json!({"portsToRedirect": "80-90"}), "at '/portsToRedirect': '80-90' does not match"),
        (json!({"portsToRedirect": [80, "90-100"]}), "at '/portsToRedirect/1': '90-100' does not"),
        (json!({"portsToRedirect": ["70000"]}), "portsToRedirect: \"70000\" is above 65535"),
        (
            json!({"ignoreInboundPorts": [80, "a"]}),
            "at '/ignoreInboundPorts/1': 'a' does not match",
        ),
        (
            json!({"ignoreOutboundPorts": [70000]}),
            "at '/ignoreOutboundPorts/0': maximum: got 70,000",
        ),
        (
            json!({"ignoreInboundPorts": [80, "90-80"]}),
            "ignoreInboundPorts: \"90-80\" is neither a port nor a range",
        ),
        (json!({"portsToRedirect": "80,70000"}), "portsToRedirect: \"70000\" is above 65535"),
        // No meshed pod would start. Upstream's plugin fails, too.
        (
            json!({"ignoreOutboundPorts": "90-80"}),
            "ignoreOutboundPorts: \"90-80\" is neither a port nor a range, and the list has no valid element",
        ),
        (
            json!({"ignoreInboundPorts": "80,70000", "strictAnnotations": true}),
            "ignoreInboundPorts: \"70000\" is neither a port nor a range",
        ),
        (
            json!({"ignoreOutboundPorts": "443, 1000", "strictAnnotations": true}),
            "ignoreOutboundPorts: \" 1000\" is neither a port nor a range",
        ),
        (json!({"strictAnnotations": "true"}), "at '/strictAnnotations': got string"),
        (json!({"strictProxyUser": "true"}), "at '/strictProxyUser': got string"),
        (json!({"skipSubnets": "10.0.0.0"}), "at '/skipSubnets': '10.0.0.0' does not match"),
        // The plugin would fail every meshed pod.
        (
            json!({"skipSubnets": "10.0.0.0/8,10.0.0.0/33"}),
            "skipSubnets: \"10.0.0.0/33\" is not a CIDR",
        ),
        (json!({"skipSubnets": "10.0.0.256/32"}), "skipSubnets: \"10.0.0.256/32\" is not a CIDR"),
        (json!({"skipSubnets": "fd00::/129"}), "skipSubnets: \"fd00::/129\" is not a CIDR"),
        (json!({"skipSubnets": "fd00:1/64"}), "skipSubnets: \"fd00:1/64\" is not a CIDR"),
        (json!({"disableIPv6": "false"}), "at '/disableIPv6': got string, want null or boolean"),
        (json!({"privileged": "false"}), "at '/privileged': got string, want null or boolean"),
        (json!({"destCNINetDir": "etc/cni"}), "at '/destCNINetDir': 'etc/cni' does not match"),
        (json!({"destCNINetDir": "/etc/cni\" # x"}), "at '/destCNINetDir'"),
        (json!({"destCNIBinDir": "/opt/../etc"}), "at '/destCNIBinDir'"),
        (json!({"image": {"version": 1.5}}), "at '/image/version': got number"),
        (
            json!({"tolerations": [{"opertor": "Exists"}]}),
            "at '/tolerations/0': additional properties 'opertor'",
        ),
        (
            json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}}),
            "maxSurge requires maxUnavailable: 0",
        ),
        (
            json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}),
            "maxUnavailable: 0 requires maxSurge",
        ),
        (
            json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%", "maxSurge": 0}}}),
            "maxUnavailable: 0 requires maxSurge",
        ),
        (
            json!({"adminPort": 9990, "repairController": {"enabled": true}}),
            "9990 is the repair controller's port",
        ),
        (json!({"platform": "eks-auto"}), "at '/platform': value must be one of '', 'aks'"),
        (
            json!({"repairController": {"mode": "restart"}}),
            "at '/repairController/mode': value must be one of 'delete', 'in-place', 'label', 'report'",
        ),
        (
            json!({"cniConfFileName": "../x.conf"}),
            "at '/cniConfFileName': '../x.conf' does not match",
        ),
        (json!({"excludeNamespaces": "kube-system"}), "at '/excludeNamespaces': got string"),
        (json!({"image": {"digest": "0123"}}), "at '/image/digest': '0123' does not match"),
        (json!({"ipv6": "maybe"}), "at '/ipv6': value must be one of '', 'auto'"),
        (json!({"apiRetrySeconds": 0}), "at '/apiRetrySeconds': minimum: got 0, want 1"),
        // Shorter than an uninstall can take.
        (
            json!({"terminationGracePeriodSeconds": 29}),
            "at '/terminationGracePeriodSeconds': minimum: got 29, want 30",
        ),
        (
            json!({"terminationGracePeriodSeconds": "29"}),
            "at '/terminationGracePeriodSeconds': '29' does not match",
        ),
        (json!({"startupTaint": "key=value:NoSchedule"}), "at '/startupTaint'"),
        (json!({"chained": false, "ownConfig": true}), "ownConfig: true requires chained: true"),
        // The repair controller would not start.
        (
            json!({"repairController": {"enabled": true, "logLevel": "inof"}}),
            "repairController.logLevel: \"inof\" is neither a level",
        ),
        (
            json!({"repairController": {"enabled": true, "logLevel": "info,kube=loud"}}),
            "repairController.logLevel: \"kube=loud\" is neither a level",
        ),
        // The agent would not start.
        (
            json!({"ownConfig": true, "cniConfFileName": "00-own.conf"}),
            "cniConfFileName: with ownConfig: true the name must end in .conflist",
        ),
        (
            json!({"image": {"name": "example.com/cni-plugin:v1"}}),
            "at '/image/name': 'example.com/cni-plugin:v1' does not match",
        ),
        // Above the largest integer: another number would be rendered.
        (
            json!({"podAnnotations": {"build": 12_345_678_901_234_567_890_u64}}),
            "at '/podAnnotations/build': maximum",
        ),
        (json!({"commonLabels": {"build": -1}}), "at '/commonLabels/build': minimum"),
        (
            json!({"image": {
                "version": format!("v1@sha256:{}", "0".repeat(64)),
                "digest": format!("sha256:{}", "0".repeat(64)),
            }}),
            "image.digest: image.version already has a digest",
        ),
        (
            json!({"extraEnv": [{"name": "SLEEP", "value": "x"}]}),
            "extraEnv: SLEEP is set by the chart",
        ),
        (
            json!({"repairController": {
                "enabled": true, "mode": "in-place", "enableSecurityContext": false,
            }}),
            "mode in-place and audits enter pods' network namespaces",
        ),
        (
            json!({"adminPort": null, "podMonitor": {"enabled": true}}),
            "podMonitor: upstream's image",
        ),
        (
            json!({"adminPort": null, "startupTaint": "example.com/wait"}),
            "startupTaint: upstream's image never removes the taint",
        ),
        (
            json!({"image": {"upstream": true}, "repairController": {"enabled": true, "mode": "report"}}),
            "repairController.mode: upstream's image always deletes stranded pods, so report has no effect",
        ),
        (
            json!({"serviceAccount": {"create": false, "name": "default"}}),
            "serviceAccount.name: every pod of the namespace may use the ServiceAccount default",
        ),
        (
            json!({"privileged": true, "securityContext": {"allowPrivilegeEscalation": false}}),
            "securityContext.allowPrivilegeEscalation: Kubernetes rejects false",
        ),
        (json!({"image": {"registry": "https://mirror.example.com"}}), "at '/image/registry'"),
    ]
}

#[test]
fn an_invalid_value_is_rejected_with_its_name_and_reason() {
    for (values, expected) in invalid() {
        let error = rejection(&values);
        assert!(error.contains(expected), "{values}: {error}");
    }
}
