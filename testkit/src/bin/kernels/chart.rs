//! Containers of the chart's DaemonSet, as the kubelet describes them to a container runtime.

use std::fs;

use serde_json::Value;
use testkit::chart::{Objects, read};

use crate::cluster::{AGENT_POD, Api, NAMESPACE, NODE};
use crate::container::{ContainerSpec, bind};

/// The chart's objects, which scripts/maintainers/kernels renders.
const OBJECTS: &str = "/chart.yaml";
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Returns the container `name` of the chart for a pod that uses this API server. Creates the
/// machine's directories that the container mounts.
pub fn container(name: &str, api: &Api) -> ContainerSpec {
    let objects = Objects::parse(&read(OBJECTS));
    let container = objects.container(name);
    let command = container["command"].as_array().cloned();
    // The image's CMD.
    let command = command.unwrap_or_else(|| vec!["/usr/bin/linkerd2-cni-install".into()]);
    let arguments = command.iter().chain(container["args"].as_array().into_iter().flatten());
    let arguments = arguments.map(|argument| argument.as_str().unwrap().to_owned()).collect();
    let mut environment: Vec<String> = Vec::new();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        environment.push(format!("{name}={}", value_of(variable, &objects)));
    }
    environment.extend(api.address_vars().map(|(name, value)| format!("{name}={value}")));

    let context = &container["securityContext"];
    assert_eq!(context["privileged"], false);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert!(context["appArmorProfile"].is_null(), "{context}");
    assert!(objects.pod()["spec"]["securityContext"]["appArmorProfile"].is_null());
    let capabilities = context["capabilities"]["add"].as_array().unwrap();
    let capabilities =
        capabilities.iter().map(|name| format!("CAP_{}", name.as_str().unwrap())).collect();

    let mut mounts = vec![mount_service_account(api)];
    for mount in container["volumeMounts"].as_array().unwrap() {
        mounts.push(mount_volume(mount, objects.pod()));
    }
    ContainerSpec { arguments, environment, capabilities, mounts, netns: None }
}

/// Returns the value of an environment variable of the chart.
fn value_of(variable: &Value, objects: &Objects) -> String {
    if let Some(value) = variable["value"].as_str() {
        return value.to_owned();
    }
    let from = &variable["valueFrom"];
    if let Some(key) = from["configMapKeyRef"]["key"].as_str() {
        let map = objects.get_by_name("ConfigMap", "linkerd-cni-config");
        return map["data"][key].as_str().unwrap().to_owned();
    }
    match from["fieldRef"]["fieldPath"].as_str() {
        Some("metadata.namespace") => NAMESPACE.to_owned(),
        Some("metadata.name") => AGENT_POD.to_owned(),
        Some("spec.nodeName") => NODE.to_owned(),
        _ => panic!("{variable}"),
    }
}

/// Returns the mount of a volume, as containerd's CRI plugin translates it.
fn mount_volume(mount: &Value, pod: &Value) -> Value {
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    let directory = match volume["hostPath"]["path"].as_str() {
        Some(path) => path.to_owned(),
        // An emptyDir.
        None => format!("/var/lib/volumes/{}", volume["name"].as_str().unwrap()),
    };
    fs::create_dir_all(&directory).unwrap();
    let propagation = match mount["mountPropagation"].as_str() {
        Some("HostToContainer") => "rslave",
        None => "rprivate",
        Some(other) => panic!("{other}"),
    };
    let access = if mount["readOnly"] == true { "ro" } else { "rw" };
    assert!(mount["subPath"].is_null(), "{mount}");
    bind(&directory, mount["mountPath"].as_str().unwrap(), &[propagation, access])
}

fn mount_service_account(api: &Api) -> Value {
    let directory = "/var/lib/volumes/service-account";
    fs::create_dir_all(directory).unwrap();
    let (ca, token) = (api.ca(), testkit::api::TOKEN.to_owned());
    for (name, text) in [("ca.crt", ca), ("token", token), ("namespace", NAMESPACE.to_owned())] {
        fs::write(format!("{directory}/{name}"), text).unwrap();
    }
    bind(directory, SERVICE_ACCOUNT_DIR, &["rprivate", "ro"])
}
