//! Whatever an API server answers for a pod, it becomes rules or an error.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::config::Config;
use linkerd2_cni::kube::types::Pod;
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::pod::{Decision, mesh};
use linkerd2_cni::redirect::Family;
use linkerd2_cni::redirect::rules::{install_script, rules};

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let text =
        r#"{"linkerd":{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":2102}}"#;
    let config = serde_json::from_str(text).expect("an object");
    Config::read(&config).expect("a configuration")
});

fuzz_target!(|answer: &[u8]| {
    let Ok(found) = serde_json::from_slice::<Pod>(answer) else {
        return;
    };
    let Ok(Decision::Redirect(proxy)) = mesh::find_proxy(&found) else {
        return;
    };
    let facts = PodFacts { annotations: found.metadata.annotations, proxy, ..PodFacts::default() };
    if let Ok(redirect) = CONFIG.redirect(&facts) {
        for family in [Family::Ipv4, Family::Ipv6] {
            let script = install_script(&rules(&redirect, family), true, &[]);
            // A quote or a line's end in a comment would be another rule.
            for rule in script.lines().filter(|line| line.starts_with("-A ")) {
                assert_eq!(rule.matches('"').count(), 2, "{rule}");
            }
        }
    }
});
