//! For any stdin, the plugin prints a result or an error object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::cni::object::Object;
use linkerd2_cni::plugin::add::previous_has_ipv6;
use linkerd2_cni::pod::skip;
use testkit::properties::runtime;

fuzz_target!(|stdin: &[u8]| {
    for args in ["", runtime::POD] {
        let stdout = runtime::add(args, stdin);
        assert!(runtime::is_cni_output(&stdout), "{stdout:?}");
    }
    if let Ok(config) = serde_json::from_slice::<Object>(stdin) {
        let _ = previous_has_ipv6(&config);
        let _ = skip::runtime_annotations(&config);
    }
});
