//! A pod with a proxy is never passed bare without a documented reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::properties::fuzzed::meshed_pod_is_not_bare_without_reason;

fuzz_target!(|input: &str| meshed_pod_is_not_bare_without_reason(input));
