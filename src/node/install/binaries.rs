//! Copies the plugin binaries from the image to the host.

use std::time::Instant;

use tracing::info;

use super::StepOutcome;
use crate::files;
use crate::node::NodeSettings;
use crate::node::binaries::Binaries;
use crate::node::contention::{LimitedWriter, WriteError, WrittenFile};

/// Copies the plugin binaries that are missing or different on the host. If `keeps_others`,
/// binaries of another agent stay in use, and only need to be executable.
pub fn install(
    settings: &NodeSettings,
    keeps_others: bool,
    compared: &mut Binaries,
    writer: &mut LimitedWriter,
) -> StepOutcome {
    let names = match Binaries::in_image(settings) {
        Ok(names) => names,
        Err(error) => {
            let dir = settings.image_bin_dir.display();
            return StepOutcome::failed(format!(
                "CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries"
            ));
        }
    };
    let mut stale = match compared.stale(settings, &names) {
        Ok(stale) => stale,
        Err(error) => return StepOutcome::failed(error.to_string()),
    };
    if keeps_others {
        stale.retain(|name| Binaries::executable(&settings.bin_dir, name).is_none());
    }
    if stale.is_empty() {
        return StepOutcome::default();
    }
    let file = WrittenFile::Binaries(settings.bin_dir.clone());
    match writer.write(&file, "", Instant::now(), || copy(settings, &stale)) {
        Ok(copied) => {
            // Word for word as in Linkerd's troubleshooting page, because users search for it.
            info!("Wrote linkerd CNI binaries to {}", settings.bin_dir.display());
            StepOutcome::written(copied)
        }
        Err(WriteError::Limited(until)) => StepOutcome::limited(&file, until),
        Err(WriteError::Failed(CopyError { copied, error })) => {
            StepOutcome { writes: copied, ..StepOutcome::failed(error.to_string()) }
        }
    }
}

/// A binary that could not be copied, after some that were.
struct CopyError {
    copied: u64,
    error: files::Error,
}

/// Copies the binaries `names` to the host, and returns their number.
fn copy(settings: &NodeSettings, names: &[String]) -> Result<u64, CopyError> {
    let mut copied = 0;
    for name in names {
        let (source, target) = (settings.image_bin_dir.join(name), settings.bin_dir.join(name));
        files::copy(&source, &target).map_err(|error| CopyError { copied, error })?;
        copied += 1;
    }
    Ok(copied)
}
