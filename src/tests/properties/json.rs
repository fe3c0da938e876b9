//! JSON as files and an API server might have it.

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

/// Annotations of a pod, some of them Linkerd's.
fn annotations() -> impl Strategy<Value = Value> {
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
