//! For any stdin, the plugin prints a result or an error object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::properties::fuzzed::stdin_gets_a_cni_output;

fuzz_target!(|input: &[u8]| stdin_gets_a_cni_output(input));
