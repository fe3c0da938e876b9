//! A pod's name and namespace from CNI_ARGS can stand in a URL.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::cni::args;

fuzz_target!(|text: &str| {
    if let Ok(Some(pod)) = args::pod(text) {
        for name in [pod.namespace, pod.name] {
            let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            assert!(!name.is_empty() && name.len() <= 253, "{name}");
            assert!(name.chars().all(safe) && !name.starts_with('.'), "{name}");
        }
    }
});
