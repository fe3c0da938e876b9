//! Permissions in the cluster and privileges on the node.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::helm::{Objects, Render, chart, read, with, yaml};

/// Returns the permissions of a ServiceAccount as "role: group/resource=name verbs".
fn permissions(objects: &Objects, account: &str) -> Vec<String> {
    let mut all = Vec::new();
    for binding in &objects.0 {
        let subjects = binding["subjects"].as_array();
        let bound = subjects.is_some_and(|s| s.iter().any(|subject| subject["name"] == account));
        if !bound {
            continue;
        }
        let role = binding["roleRef"]["kind"].as_str().unwrap();
        let name = binding["roleRef"]["name"].as_str().unwrap();
        for rule in objects.named(role, name)["rules"].as_array().unwrap() {
            all.push(format!("{role} {name}: {}", describe(rule)));
        }
    }
    all
}

fn describe(rule: &Value) -> String {
    let only = |key: &str| {
        let list = rule[key].as_array().unwrap();
        assert_eq!(list.len(), 1, "{rule}");
        list[0].as_str().unwrap().to_string()
    };
    let name = rule.get("resourceNames").map(|_| format!("={}", only("resourceNames")));
    let verbs: Vec<_> = rule["verbs"].as_array().unwrap().iter().collect();
    let verbs: Vec<_> = verbs.iter().map(|verb| verb.as_str().unwrap()).collect();
    format!(
        "{}/{}{} {}",
        only("apiGroups"),
        only("resources"),
        name.unwrap_or_default(),
        verbs.join(",")
    )
}

const PLUGIN: [&str; 3] = [
    "ClusterRole linkerd-cni: /pods get",
    "ClusterRole linkerd-cni: /namespaces get",
    "ClusterRole linkerd-cni: /services=kubernetes get",
];

const AGENT: [&str; 4] = [
    "ClusterRole linkerd-cni-agent: /nodes get",
    "ClusterRole linkerd-cni-agent: events.k8s.io/events create",
    "Role linkerd-cni-agent: apps/daemonsets=linkerd-cni get",
    "Role linkerd-cni-agent: /serviceaccounts/token=linkerd-cni-plugin create",
];

#[test]
fn the_token_on_the_node_may_only_read_what_the_plugin_reads() {
    for values in [
        json!({}),
        json!({"repairController": {"enabled": true}, "startupTaint": "a", "platform": "openshift"}),
    ] {
        assert_eq!(permissions(&with(values), "linkerd-cni-plugin"), PLUGIN);
    }
}

#[test]
fn the_agent_has_only_permissions_of_enabled_features() {
    let of = |values: Value, more: &[&str]| {
        let expected = [&PLUGIN[..], &AGENT, more].concat();
        let mut found = permissions(&with(values.clone()), "linkerd-cni");
        // Roles of the plugin, the agent, the repair controller, the taint.
        found.sort_by_key(|permission| {
            (
                permission.contains("linkerd-cni-"),
                permission.contains("-repair"),
                permission.contains("-taint"),
            )
        });
        assert_eq!(found, expected, "{values}");
    };
    of(json!({}), &[]);
    let watch = "ClusterRole linkerd-cni-repair: /pods list,watch";
    let event = "ClusterRole linkerd-cni-repair: events.k8s.io/events create";
    let delete = "ClusterRole linkerd-cni-repair: /pods delete";
    let evict = "ClusterRole linkerd-cni-repair: /pods/eviction create";
    let label = "ClusterRole linkerd-cni-repair: /pods patch";
    let repair = |mode: &str| json!({"repairController": {"enabled": true, "mode": mode}});
    of(repair("delete"), &[watch, delete, evict, event]);
    of(repair("label"), &[watch, label, event]);
    of(repair("in-place"), &[watch, event]);
    of(repair("report"), &[watch, event]);
    of(json!({"startupTaint": "a"}), &["ClusterRole linkerd-cni-taint: /nodes get,patch"]);
    let objects = with(json!({"openshift": {"enabled": true}}));
    let scc =
        "Role linkerd-cni-agent: security.openshift.io/securitycontextconstraints=privileged use";
    assert!(permissions(&objects, "linkerd-cni").contains(&scc.to_string()));
}

#[test]
fn without_rbac_and_service_accounts_only_other_objects_are_rendered() {
    let on = json!({"repairController": {"enabled": true}, "startupTaint": "a"});
    let mut values = on.clone();
    values["rbac"]["create"] = json!(false);
    values["serviceAccount"]["create"] = json!(false);
    for object in &with(values).0 {
        let kind = object["kind"].as_str().unwrap();
        assert!(["ConfigMap", "DaemonSet", "Pod"].contains(&kind), "{kind}");
    }
    assert!(with(on).have("ServiceAccount"));
}

/// Only the DaemonSet's pods mount a token.
#[test]
fn only_pods_of_the_daemonset_mount_a_token() {
    let objects = with(json!({}));
    for account in ["linkerd-cni", "linkerd-cni-plugin"] {
        let account = objects.named("ServiceAccount", account);
        assert_eq!(account["automountServiceAccountToken"], false);
    }
    let pod = &objects.pod()["spec"];
    assert_eq!(pod["serviceAccountName"], "linkerd-cni");
    assert_eq!(pod["automountServiceAccountToken"], true);
}

#[test]
fn the_agent_has_only_the_capabilities_that_it_uses() {
    let context = |values: Value| with(values).container("install-cni")["securityContext"].clone();
    let expected = |add: Value| {
        json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": add},
            "readOnlyRootFilesystem": true,
        })
    };
    assert_eq!(
        context(json!({})),
        expected(json!(["DAC_OVERRIDE", "CHOWN", "SYS_ADMIN", "NET_ADMIN"]))
    );
    assert_eq!(context(json!({"selfTest": false})), expected(json!(["DAC_OVERRIDE", "CHOWN"])));
    assert_eq!(
        context(json!({"privileged": true})),
        json!({"privileged": true, "readOnlyRootFilesystem": true})
    );
    let own = context(
        json!({"selfTest": false, "securityContext": {"capabilities": {"add": []}, "runAsUser": 0}}),
    );
    assert_eq!(own["capabilities"], json!({"drop": ["ALL"], "add": []}));
    assert_eq!(own["runAsUser"], 0);
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(with(json!({})).pod()["spec"].get(key).is_none(), "{key}");
    }
    let labelled = with(json!({"seLinuxOptions": {"type": "spc_t", "user": null}}));
    assert_eq!(
        labelled.pod()["spec"]["securityContext"],
        json!({"seccompProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"type": "spc_t"}})
    );
}

/// Without the variable the controller uses /etc/cni/net.d, which k3s does not have.
#[test]
fn the_repair_controller_uses_the_net_dir_that_is_mounted() {
    let values =
        json!({"platform": "k3s", "repairController": {"enabled": true, "mode": "in-place"}});
    let objects = with(values);
    let repair = objects.container("repair-controller");
    let source =
        json!({"configMapKeyRef": {"name": "linkerd-cni-config", "key": "dest_cni_net_dir"}});
    let variable = json!({"name": "DEST_CNI_NET_DIR", "valueFrom": source});
    assert!(repair["env"].as_array().unwrap().contains(&variable), "{repair}");
    let dir = objects.get("ConfigMap")["data"]["dest_cni_net_dir"].as_str().unwrap();
    let mounts = repair["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "cni-net-dir");
    assert_eq!(mount.unwrap()["mountPath"], format!("/host{dir}"));
}

#[test]
fn the_repair_controller_can_enter_pods_only_in_modes_that_require_it() {
    let repair = |values: Value| {
        let objects = with(json!({"repairController": values}));
        (
            objects.container("repair-controller").clone(),
            objects.pod()["spec"]["volumes"].as_array().unwrap().len(),
        )
    };
    for values in [
        json!({"enabled": true, "mode": "in-place"}),
        json!({"enabled": true, "mode": "report", "auditIntervalSeconds": 60}),
    ] {
        let (container, volumes) = repair(values);
        assert_eq!(
            container["securityContext"]["capabilities"],
            json!({"drop": ["ALL"], "add": ["SYS_ADMIN", "NET_ADMIN"]})
        );
        assert_eq!(
            container["volumeMounts"],
            json!([
                {
                    "name": "netns", "mountPath": "/host/var/run/netns", "readOnly": true,
                    "mountPropagation": "HostToContainer",
                },
                {"name": "cni-cache", "mountPath": "/host/var/lib/cni", "readOnly": true},
                {"name": "cni-net-dir", "mountPath": "/host/etc/cni/net.d", "readOnly": true},
            ])
        );
        assert_eq!(volumes, 5);
    }
    for mode in ["delete", "label", "report"] {
        let (container, volumes) = repair(json!({"enabled": true, "mode": mode}));
        let context = &container["securityContext"];
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(
            container["volumeMounts"],
            json!([{"name": "cni-net-dir", "mountPath": "/host/etc/cni/net.d", "readOnly": true}])
        );
        assert_eq!(volumes, 3);
    }
}

/// Returns kind and name of the admission policies and their bindings.
fn policies(objects: &Objects) -> Vec<String> {
    let name = |object: &Value| {
        let kind = object["kind"].as_str()?.strip_prefix("ValidatingAdmissionPolicy")?;
        Some(format!("{kind}:{}", object["metadata"]["name"].as_str()?))
    };
    let mut names: Vec<_> = objects.0.iter().filter_map(name).collect();
    names.sort();
    names
}

#[test]
fn admission_policies_are_rendered_exactly_for_permissions_that_they_limit() {
    let repair = |mode: &str| json!({"repairController": {"enabled": true, "mode": mode}});
    let of_taint = ["Binding:linkerd-cni-taint", ":linkerd-cni-taint"];
    let of_repair = ["Binding:linkerd-cni-repair", ":linkerd-cni-repair"];
    for (mut values, expected) in [
        (json!({}), &[][..]),
        (json!({"startupTaint": "a"}), &of_taint),
        (repair("delete"), &of_repair),
        (repair("label"), &of_repair),
        (repair("in-place"), &[]),
        (repair("report"), &[]),
        // Upstream's controller deletes pods, too.
        (json!({"repairController": {"enabled": true}, "adminPort": null}), &of_repair),
    ] {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(policies(&with(values.clone())), expected, "{values}");
        for value in ["admissionPolicy", "rbac"] {
            let key = if value == "rbac" { "create" } else { "enabled" };
            values[value] = json!({key: false});
            assert!(policies(&with(values.clone())).is_empty(), "{values}");
            values[value] = Value::Null;
        }
    }
}

/// An error in a condition or a policy must not affect other accounts.
#[test]
fn admission_policies_apply_only_to_the_account_of_the_release_and_its_taint() {
    let values = json!({"startupTaint": "a.b/c", "repairController": {"enabled": true}});
    let objects = Render::new().namespace("mesh").values(&values).objects();
    for name in ["linkerd-cni-taint", "linkerd-cni-repair"] {
        let spec = &objects.named("ValidatingAdmissionPolicy", name)["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
        let account = r#"request.userInfo.username == "system:serviceaccount:mesh:linkerd-cni""#;
        assert!(condition.ends_with(account), "{condition}");
        for validation in spec["validations"].as_array().unwrap() {
            // 403, on which the repair controller tries a dry run. The default is 422.
            assert_eq!(validation["reason"], "Forbidden", "{validation}");
        }
        let binding = &objects.named("ValidatingAdmissionPolicyBinding", name)["spec"];
        assert_eq!(*binding, json!({"policyName": name, "validationActions": ["Deny"]}));
    }
    let taint = objects.named("ValidatingAdmissionPolicy", "linkerd-cni-taint").to_string();
    assert!(taint.contains(r#"taint.key != \"a.b/c\""#), "{taint}");
}

/// Reduces the roles and bindings to the fields that the README has.
fn roles(objects: &[Value]) -> BTreeMap<String, Value> {
    let is_role = |object: &&Value| object["apiVersion"] == "rbac.authorization.k8s.io/v1";
    let reduced = objects.iter().filter(is_role).map(|object| {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        let mut reduced = object.clone();
        reduced["metadata"] =
            json!({"name": name, "namespace": object["metadata"].get("namespace")});
        (format!("{kind} {name}"), reduced)
    });
    reduced.collect()
}

#[test]
fn the_readme_has_the_permissions_that_rbac_create_false_leaves_out() {
    let readme = read(chart().join("README.md"));
    let section = readme.split_once("### With `rbac.create: false`\n").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let manifests: Vec<_> =
        blocks.map(|block| roles(&block.split("\n---\n").map(yaml).collect::<Vec<_>>())).collect();
    let repair = |mode: &str| json!({"repairController": {"enabled": true, "mode": mode}});
    let cases = [
        (json!({}), 0),
        (json!({"startupTaint": "a"}), 1),
        (repair("in-place"), 2),
        (repair("report"), 2),
        (repair("delete"), 3),
        (repair("label"), 4),
        (json!({"openshift": {"enabled": true}}), 5),
    ];
    assert_eq!(manifests.len(), 6);
    for (values, index) in cases {
        let mut manifest = manifests[0].clone();
        manifest.extend(manifests[index].clone());
        assert_eq!(manifest, roles(&with(values.clone()).0), "{values}");
    }
}
