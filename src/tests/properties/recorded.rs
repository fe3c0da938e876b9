//! Cases that failed once, which each property runs before new cases.

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
