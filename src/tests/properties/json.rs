//! JSON that a runtime or an API server might send, valid and invalid.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Any JSON of a small size.
pub fn any_json() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        select(&["10.0.0.1/8", "fd00::1/64", "auto", "4143", "0", "linkerd-proxy"][..])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{0,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
    .boxed()
}

/// An object with some of `keys`.
pub fn object(
    keys: &'static [&'static str],
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Value> {
    vec((select(keys), value), 0..=keys.len())
        .prop_map(|members| {
            let members = members.into_iter().map(|(key, value)| (key.to_owned(), value));
            Value::Object(members.collect::<Map<_, _>>())
        })
        .boxed()
}

fn or_any(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![4 => value, 1 => any_json()].boxed()
}

fn list(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    or_any(vec(value, 0..4).prop_map(Value::from))
}

fn version() -> BoxedStrategy<Value> {
    let versions = &["0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "9"][..];
    or_any(select(versions).prop_map(Value::from))
}

/// What libcni sends to the plugin: the plugin entry with a prevResult. The annotations that the
/// runtime passes are `annotations`.
pub fn network_config(
    annotations: impl Strategy<Value = Value> + 'static,
) -> impl Strategy<Value = Value> {
    let linkerd = object(
        &[
            "incoming-proxy-port",
            "proxy-uid",
            "ports-to-redirect",
            "inbound-ports-to-ignore",
            "subnets-to-ignore",
            "simulate",
            "iptables-mode",
            "ipv6",
            "pod-detection",
            "exclude-namespaces",
            "api-retry-seconds",
        ],
        any_json(),
    );
    let address =
        object(&["address", "version", "gateway", "interface", "ip", "routes"], any_json());
    let lists = &["ips", "routes", "interfaces"][..];
    let previous = (
        version(),
        proptest::collection::btree_map(select(lists), list(address.clone()), 0..3),
        object(&["ip4", "ip6", "dns"], or_any(address)),
    );
    let previous = previous.prop_map(|(version, lists, mut result)| {
        result["cniVersion"] = version;
        for (key, value) in lists {
            result[key] = value;
        }
        result
    });
    (version(), or_any(previous), or_any(linkerd), annotations).prop_map(
        |(version, previous, linkerd, runtime)| {
            json!({"cniVersion": version, "name": "n", "prevResult": previous, "linkerd": linkerd,
                "log_level": "none", "runtimeConfig": {"io.kubernetes.cri.pod-annotations": runtime}})
        },
    )
}

/// Annotations of a pod, some of them Linkerd's.
pub fn annotations() -> impl Strategy<Value = Value> {
    let keys = &[
        "app",
        "linkerd.io/inject",
        "linkerd.io/created-by",
        "linkerd.io/proxy-version",
        "config.linkerd.io/proxy-uid",
        "config.linkerd.io/skip-inbound-ports",
        "config.linkerd.io/skip-outbound-ports",
        "config.linkerd.io/skip-subnets",
        "config.linkerd.io/admin-port",
    ][..];
    let values = &["enabled", "disabled", "linkerd/proxy-injector v1", "4191", "", "80,x", "::/0"];
    object(keys, select(&values[..]).prop_map(Value::from))
}

/// A pod whose fields have the types of the Kubernetes API.
pub fn pod() -> impl Strategy<Value = Value> {
    let address = &["0.0.0.0:4143", "[::]:4190", "4191", ":0", ""][..];
    let names = &["LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "A"];
    let variable = (select(&names[..]), select(address))
        .prop_map(|(name, value)| json!({"name": name, "value": value}));
    let id = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from)];
    let context = object(&["runAsUser", "runAsGroup"], id);
    let names = &["app", "linkerd-proxy", "linkerd-init"][..];
    let container = (select(names), vec(variable, 0..3), context.clone()).prop_map(
        |(name, env, context)| json!({"name": name, "env": env, "securityContext": context}),
    );
    let metadata = ("[a-z]{1,8}", annotations()).prop_map(
        |(name, annotations)| json!({"name": name, "namespace": "ns", "annotations": annotations}),
    );
    let containers = (vec(container.clone(), 0..3), vec(container, 0..3), context);
    (metadata, containers).prop_map(|(metadata, (containers, init, context))| {
        json!({"metadata": metadata, "spec": {"containers": containers, "initContainers": init,
            "securityContext": context}})
    })
}

/// A [`pod`] with a proxy as its first container, in which one field has any value.
pub fn damaged_pod() -> impl Strategy<Value = Value> {
    let field = select(
        &[
            "/metadata",
            "/metadata/name",
            "/metadata/annotations",
            "/spec",
            "/spec/containers",
            "/spec/containers/0",
            "/spec/containers/0/env",
            "/spec/containers/0/env/0/value",
            "/spec/containers/0/securityContext",
            "/spec/initContainers",
            "/spec/initContainers/0/name",
            "/spec/securityContext",
        ][..],
    );
    let proxy = json!({"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}, "env": [
        {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
    ]});
    let value = prop_oneof![any_json(), "[0-9:.]{0,8}".prop_map(Value::from)];
    (pod(), field, value).prop_map(move |(mut pod, field, value)| {
        if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
            containers.insert(0, proxy.clone());
        }
        if let Some(place) = pod.pointer_mut(field) {
            *place = value;
        }
        pod
    })
}
