//! Whatever an API server answers for a pod, it becomes rules or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::properties::fuzzed::pod_becomes_rules_or_an_error;

fuzz_target!(|input: &[u8]| pod_becomes_rules_or_an_error(input));
