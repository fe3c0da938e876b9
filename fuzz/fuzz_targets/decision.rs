//! A pod with a proxy is never passed bare without a documented reason, whatever its name, its
//! annotations and its ports are.
//!
//! Line 1: switches. Line 2: namespace. Line 3: name. Then annotations `KEY=VALUE`, where KEY may
//! be the number of one that Linkerd knows; `n:` before KEY: on the namespace.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::cni::args;
use linkerd2_cni::pod::annotation::{CREATED_BY, INJECT, TABLE};
use testkit::properties::decision::{API_ERRORS, COPY_STATES, Start};

const CONTAINERS: [&[&str]; 4] = [&["app"], &["app", "linkerd-proxy"], &["linkerd-init"], &[]];

fn key(text: &str) -> String {
    let known: Vec<&str> = TABLE.iter().map(|row| row.key).chain([INJECT, CREATED_BY]).collect();
    let number: Option<usize> = text.parse().ok();
    number.and_then(|number| known.get(number)).map_or(text, |known| *known).to_owned()
}

fn start(text: &str) -> Option<Start> {
    let mut lines = text.lines();
    let switches = lines.next()?.as_bytes();
    let switch = |index: usize| usize::from(switches.get(index).copied().unwrap_or_default());
    let (namespace, name) = (lines.next()?.to_owned(), lines.next()?.to_owned());
    // Only these names reach the decision.
    let pair = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    args::parse_pod(&pair).ok()??;
    let (mut annotations, mut of_namespace) = (Vec::new(), Vec::new());
    for line in lines {
        let (left, value) = line.split_once('=')?;
        match left.strip_prefix("n:") {
            Some(left) => of_namespace.push((key(left), value.to_owned())),
            None => annotations.push((key(left), value.to_owned())),
        }
    }
    Some(Start {
        namespace,
        name,
        annotations: annotations.into_iter().collect(),
        containers: CONTAINERS[switch(0) % CONTAINERS.len()].to_vec(),
        init_containers: CONTAINERS[switch(1) % CONTAINERS.len()].to_vec(),
        has_capability: switch(2) % 2 == 0,
        copy: COPY_STATES[switch(3) % COPY_STATES.len()],
        strict: switch(4) % 2 == 1,
        of_namespace: of_namespace.into_iter().collect(),
        api_error: API_ERRORS.get(switch(5) % 8).copied(),
    })
}

fuzz_target!(|text: &str| {
    if let Some(start) = start(text) {
        start.assert_not_bare();
    }
});
