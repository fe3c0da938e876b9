//! Cases that failed once, which each property runs before new cases.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Seeds of these cases. A failure adds a line: commit it with the mend.
pub const REGRESSIONS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/properties/regressions.txt");

/// Settings of a property whose failed cases are recorded in the file.
pub fn recorded_in(file: &'static str) -> ProptestConfig {
    let persistence = FileFailurePersistence::Direct(file);
    ProptestConfig { failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

#[test]
fn every_property_runs_the_recorded_cases() {
    let dir = Path::new(REGRESSIONS).parent().unwrap();
    let mut properties = 0;
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("\nproptest! {\n").skip(1) {
            let settings = block.lines().next().unwrap();
            assert!(
                settings.contains("recorded_in(REGRESSIONS)"),
                "{}: {settings}",
                path.display()
            );
            properties += 1;
        }
    }
    assert!(properties >= 3, "{properties}");
    let seeds = fs::read_to_string(REGRESSIONS).unwrap();
    assert!(seeds.lines().any(|line| line.starts_with("cc ")), "{seeds}");
}
