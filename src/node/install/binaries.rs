//! Copies the plugin binaries from the image to the host.

use std::time::Instant;

use tracing::info;

use super::StepOutcome;
use super::run_check::{RunCheck, RunFailure, Verdict};
use crate::conflist::PLUGIN;
use crate::files;
use crate::node::NodeSettings;
use crate::node::binaries::Binaries;
use crate::node::contention::{LimitedWriter, WriteError, WrittenFile};
use crate::node::observed::Observed;

/// Copies the plugin binaries that are missing or different on the host. If `keeps_other_binaries`,
/// the binaries of another agent stay in use, and one is replaced only if it is not executable. A
/// new plugin that cannot be run does not replace the plugin on the host.
pub fn install(
    settings: &NodeSettings,
    observed: &Observed,
    keeps_other_binaries: bool,
    compared: &mut Binaries,
    run_check: &mut RunCheck,
    writer: &mut LimitedWriter,
) -> StepOutcome {
    let stale = match binaries_to_copy(settings, keeps_other_binaries, compared) {
        Ok(stale) => stale,
        Err(problem) => return StepOutcome::failed(problem),
    };
    if stale.is_empty() {
        return StepOutcome::default();
    }
    if stale.iter().any(|name| name == PLUGIN)
        && let Some(failure) = run_check.rejection(&settings.image_bin_dir, &settings.bin_dir)
    {
        return StepOutcome::failed(describe_rejection(settings, observed, failure));
    }
    let file = WrittenFile::Binaries(settings.bin_dir.clone());
    // All copies of the binaries count as the same write, so they have the same key.
    let key = "";
    match writer.write(&file, key, Instant::now(), || copy(settings, &stale, run_check)) {
        Ok(copied) => {
            // This line is the one in Linkerd's troubleshooting page, word for word, because users
            // search for it.
            info!("Wrote linkerd CNI binaries to {}", settings.bin_dir.display());
            StepOutcome::written(copied)
        }
        Err(WriteError::Limited(until)) => StepOutcome::limited(&file, until),
        Err(WriteError::Failed(CopyError { copied, cause })) => {
            let problem = match cause {
                CopyFailure::Io(error) => error.to_string(),
                CopyFailure::Rejected(failure) => describe_rejection(settings, observed, &failure),
            };
            StepOutcome { writes: copied, ..StepOutcome::failed(problem) }
        }
    }
}

/// Returns the names of the binaries that are missing or different on the host. If
/// `keeps_other_binaries`, a different one counts only if it is not executable. Fails with the text
/// of a problem.
fn binaries_to_copy(
    settings: &NodeSettings,
    keeps_other_binaries: bool,
    compared: &mut Binaries,
) -> Result<Vec<String>, String> {
    let names = Binaries::in_image(settings).map_err(|error| {
        let dir = settings.image_bin_dir.display();
        format!(
            "CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries"
        )
    })?;
    let mut stale = compared.stale(settings, &names).map_err(|error| error.to_string())?;
    if keeps_other_binaries {
        stale.retain(|name| Binaries::executable_stamp(&settings.bin_dir.join(name)).is_none());
    }
    Ok(stale)
}

/// Runs the installed plugin. Adds to `outcome` why it cannot be run, or why that is unknown.
pub fn check_installed(
    settings: &NodeSettings,
    observed: &Observed,
    run_check: &mut RunCheck,
    outcome: &mut StepOutcome,
) {
    let path = settings.bin_dir.join(PLUGIN);
    match run_check.check(&path) {
        Verdict::Runs => {}
        Verdict::Unknown { why } => {
            outcome.warning = Some(format!(
                "cannot check {}: the agent may not run it: {why}; the container runtime may be \
                 allowed to, so the agent chains the plugin; if pods fail to start with this \
                 error, allow the program in the node's security module (SELinux, AppArmor, \
                 fapolicyd, KubeArmor)",
                path.display()
            ));
        }
        Verdict::Fails(failure) => {
            let why = failure.describe(consequence(observed));
            outcome.problem = Some(format!("cannot run {}: {why}", path.display()));
        }
    }
}

/// Describes a new plugin that was not installed, because it cannot be run.
fn describe_rejection(
    settings: &NodeSettings,
    observed: &Observed,
    failure: &RunFailure,
) -> String {
    let path = settings.bin_dir.join(PLUGIN);
    let path = path.display();
    if !observed.has_plugin {
        return format!("cannot run {path}: {}", failure.describe(consequence(observed)));
    }
    let consequence = if observed.has_plugin_entry() {
        "the earlier plugin stays, and is chained"
    } else {
        "the earlier plugin stays, and is not chained"
    };
    format!("cannot run the new {path}: {}", failure.describe(consequence))
}

/// Returns what happens to pods because the plugin on the host cannot be run.
fn consequence(observed: &Observed) -> &'static str {
    if observed.has_plugin_entry() {
        "the plugin is already chained, so new pods may fail to start"
    } else {
        "pods could not start, so the agent does not chain the plugin"
    }
}

/// Why not all binaries were copied.
struct CopyError {
    /// Number of binaries that were copied before the failure.
    copied: u64,
    cause: CopyFailure,
}

/// Why one binary was not copied.
enum CopyFailure {
    Io(files::Error),
    /// The new plugin cannot be run.
    Rejected(RunFailure),
}

/// Copies the binaries `names` to the host, and returns their number.
fn copy(
    settings: &NodeSettings,
    names: &[String],
    run_check: &mut RunCheck,
) -> Result<u64, CopyError> {
    let mut copied = 0;
    for name in names {
        replace(settings, name, run_check).map_err(|cause| CopyError { copied, cause })?;
        copied += 1;
    }
    Ok(copied)
}

/// Replaces the binary `name` on the host. A new plugin is run before that, from the temporary file
/// that is going to replace the binary. That file is on the same mount as the binary, so the run
/// shows whether the plugin can be run there.
fn replace(
    settings: &NodeSettings,
    name: &str,
    run_check: &mut RunCheck,
) -> Result<(), CopyFailure> {
    let source = settings.image_bin_dir.join(name);
    let target = settings.bin_dir.join(name);
    let new = files::stage_copy(&source, &target).map_err(CopyFailure::Io)?;
    if name == PLUGIN
        && let Some(failure) = run_check.check_new(&settings.image_bin_dir, new.path())
    {
        // The temporary file `new` is dropped here, which removes it from the disk.
        return Err(CopyFailure::Rejected(failure));
    }
    new.rename().map_err(CopyFailure::Io)
}
