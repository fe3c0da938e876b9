//! Each element of a list is a range or bad, and the ranges print as a list that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd2_cni::redirect::ports::{self, InvalidElements};

fuzz_target!(|text: &str| {
    let (ranges, invalid) = ports::list(text);
    assert_eq!(ranges.len() + invalid.first.len() + invalid.more, text.split(',').count());
    assert!(ranges.iter().all(|range| range.first <= range.last));
    if !ranges.is_empty() {
        let printed = ports::joined(&ranges).replace(':', "-");
        assert_eq!(ports::list(&printed), (ranges.clone(), InvalidElements::default()));
    }
    assert_eq!(ports::groups(&ranges).concat(), ranges);
});
