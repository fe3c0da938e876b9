//! Whatever comes on stdin, a result or an error object goes to stdout.
#![no_main]

#[path = "../../src/tests/properties/runtime.rs"]
mod runtime;

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::cni::object::Object;
use linkerd2_cni::config::families;
use linkerd2_cni::plugin::decision;

fuzz_target!(|stdin: &[u8]| {
    let stdout = runtime::add(stdin);
    assert!(runtime::is_answer(&stdout), "{stdout:?}");
    if let Ok(config) = serde_json::from_slice::<Object>(stdin) {
        let _ = families::previous_has_ipv6(&config);
        let _ = decision::annotations(&config);
    }
});
