//! The folder that `scripts/release` wrote.

use std::path::PathBuf;

/// Returns the folder of the release that is tested.
pub fn release() -> PathBuf {
    let folder = std::env::var_os("LINKERD2_CNI_RELEASE").expect(
        "LINKERD2_CNI_RELEASE names a release; scripts/release.d/reproduce DIRECTORY makes one",
    );
    folder.into()
}
