//! A list of ports that is read prints as one that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::ports;

fuzz_target!(|text: &str| {
    if let Ok(ranges) = ports::list(text) {
        assert!(ranges.iter().all(|range| range.first <= range.last));
        let printed = ports::joined(&ranges).replace(':', "-");
        assert_eq!(ports::list(&printed).as_ref(), Ok(&ranges));
        assert_eq!(ports::groups(&ranges).concat(), ranges);
    }
});
