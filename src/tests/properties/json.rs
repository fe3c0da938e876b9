//! JSON as a runtime or an API server could send it, mostly wrong.

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

/// What libcni sends: one plugin's configuration with a prevResult.
pub fn network_config() -> impl Strategy<Value = Value> {
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
    (version(), or_any(previous), or_any(linkerd), any_json()).prop_map(
        |(version, previous, linkerd, runtime)| {
            json!({"cniVersion": version, "name": "n", "prevResult": previous, "linkerd": linkerd,
                "log_level": "none", "runtimeConfig": {"io.kubernetes.cri.pod-annotations": runtime}})
        },
    )
}

/// What an API server answers for a pod.
pub fn pod() -> impl Strategy<Value = Value> {
    let variable = object(&["name", "value", "valueFrom"], any_json());
    let context = object(&["runAsUser", "runAsGroup"], any_json());
    let names = &["app", "linkerd-proxy", "linkerd-init"][..];
    let container = (select(names), list(variable), or_any(context.clone())).prop_map(
        |(name, env, context)| json!({"name": name, "env": env, "securityContext": context}),
    );
    let metadata = object(&["name", "labels", "annotations"], any_json());
    let containers = (list(container.clone()), list(container), or_any(context));
    (or_any(metadata), containers).prop_map(|(metadata, (containers, init, context))| {
        json!({"metadata": metadata, "spec": {"containers": containers, "initContainers": init,
            "securityContext": context}})
    })
}
