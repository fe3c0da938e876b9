//! The node's copy of its pods: one file for each pod, with the plugin's decision on the pod. The
//! agent writes the files. The plugin reads them, so that it needs no API request.
//!
//! The files are in `/run/linkerd-cni/pods`, which only root can read, and are named by the UID
//! that the runtime passes to the plugin. A [`Lock`] on the file `.lock` in this directory tells
//! whether a live agent keeps the copy. The kernel releases the lock when the agent dies, so the
//! plugin needs no time stamps to notice a dead agent.
//!
//! A file is either complete or missing, because a new file replaces the old one by a rename.
//!
//! During an upgrade, and after a rollback, agent and plugin are of different versions. An older
//! agent leaves out annotations that only a newer plugin knows, and the plugin could not tell that
//! from a pod without them. So each file names the [`format`] for which it was written. From a file
//! of another format the plugin learns only that the pod is meshed.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_int, c_short};
use nix::unistd::geteuid;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::cni::args::{PodRef, is_name};
use crate::deadline::Deadline;
use crate::files::{self, FileAccess};
use crate::kube::redact;
use crate::pod::Decision;
use crate::pod::annotation::TABLE;
use crate::pod::facts::PodFacts;
use crate::quote::quote;

const DIR: &str = "pods";
/// Name of the lock file. It is never the name of a pod's file, because no UID starts with a dot.
const LOCK: &str = ".lock";
/// Default of [`run_dir`].
pub const RUN_DIR: &str = "/run/linkerd-cni";
/// Environment variable of agent and plugin that replaces [`RUN_DIR`].
pub const RUN_DIR_VARIABLE: &str = "LINKERD_CNI_RUN_DIR";

/// Version of the facts in a file. Raise it if a fact is added without which the plugin would
/// decide otherwise, or if a fact gets another meaning. Annotations need no new version: see
/// [`format`].
const FACTS_VERSION: u32 = 1;

/// Longest facts of a published pod, in bytes. The limit bounds the agent's memory. The facts of
/// real pods are far shorter.
pub const FACTS_LIMIT: usize = 4 << 10;

/// Longest wait of an ADD for the agent to publish the pod. Usually the agent has published the pod
/// before the runtime calls the plugin.
pub const PUBLISH_WAIT: Duration = Duration::from_millis(100);
/// Time between two attempts of [`read_or_wait`] to read a pod's file.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What the node's copy says about a pod.
#[derive(Debug, PartialEq, Eq)]
pub enum NodeCopy {
    Decides(Box<Decision<PodFacts>>),
    /// The pod is meshed, and the copy lacks its facts: they are too large, or were published by an
    /// agent of another version.
    Meshed,
    /// A live agent keeps the copy, and has not published the pod.
    Lacks,
    /// No live agent keeps the copy, and the pod is not in it.
    Unkept,
}

/// What the agent published about a pod.
#[derive(Debug, PartialEq, Eq)]
pub enum PublishedPod {
    Decision(Box<Decision<PodFacts>>),
    /// The pod is meshed, and its facts are too large for the copy. The agent publishes this, so
    /// that the plugin asks the API server at once instead of waiting for the pod's file.
    TooLarge,
    /// An agent of another version wrote the file for another [`format`]. A redirect shows that the
    /// pod is meshed. A skip shows nothing, because another version may know other meshed pods.
    OtherFormat {
        is_meshed: bool,
    },
}

/// Content of a pod's file.
#[derive(Debug, Serialize, Deserialize)]
struct PodCopy {
    /// The [`format`] of the agent. Empty in files of agents that did not write it.
    #[serde(default)]
    format: String,
    namespace: String,
    name: String,
    uid: String,
    /// An `Option<Decision<PodFacts>>`. `None`: [`PublishedPod::TooLarge`]. It is parsed only if
    /// the format is right.
    decision: Box<RawValue>,
}

impl PodCopy {
    fn is_of(&self, pod: &PodRef) -> bool {
        self.namespace == pod.namespace && self.name == pod.name && self.uid == pod.uid
    }
}

/// Returns the format of this program's files: [`FACTS_VERSION`], and a digest of the annotations
/// that the facts have, and of which of them come from the namespace, too.
fn format() -> String {
    // FNV-1a. A hash of the standard library may change with its version.
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for row in TABLE {
        for byte in row.key.bytes().chain([0, row.value as u8]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{FACTS_VERSION}-{digest:016x}")
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] files::Error),
    #[error("{} is {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },
    #[error("the UID {} of pod {} cannot be a file name", quote(&.0.uid), .0)]
    Uid(PodRef),
}

/// Returns the directory that agent and plugin share, from the environment or else [`RUN_DIR`].
pub fn run_dir() -> PathBuf {
    match env::var_os(RUN_DIR_VARIABLE) {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(RUN_DIR),
    }
}

/// Reads what the agent published about the pod. `None` if the agent published nothing, or if the
/// pod's UID is unknown. Fails if the file cannot be read, is not the agent's, or is that of
/// another pod.
pub fn read(run_dir: &Path, pod: &PodRef) -> Result<Option<PublishedPod>, Error> {
    let Ok(path) = path(run_dir, pod) else { return Ok(None) };
    let (bytes, access) = match files::read(&path) {
        Ok(bytes_and_access) => bytes_and_access,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match parse(&bytes, access, pod) {
        Ok(published) => Ok(Some(published)),
        Err(problem) => Err(Error::Invalid { path, problem }),
    }
}

/// Parses a pod's file. The error is the rest of a sentence that starts with "PATH is".
fn parse(bytes: &[u8], access: FileAccess, pod: &PodRef) -> Result<PublishedPod, String> {
    if !can_only_root_write(access) {
        return Err("not a file that only root can write".to_owned());
    }
    let copy: PodCopy = redact::decode_object(bytes).map_err(not_a_copy)?;
    if !copy.is_of(pod) {
        return Err(format!(
            "the copy of pod {}/{} with UID {}",
            quote(&copy.namespace),
            quote(&copy.name),
            quote(&copy.uid)
        ));
    }
    if copy.format != format() {
        return Ok(PublishedPod::OtherFormat { is_meshed: is_redirect(&copy.decision) });
    }
    let decision: Option<Decision<PodFacts>> =
        serde_json::from_str(copy.decision.get()).map_err(not_a_copy)?;
    match decision {
        Some(decision) => Ok(PublishedPod::Decision(Box::new(decision))),
        None => Ok(PublishedPod::TooLarge),
    }
}

/// Whether no other user than this process's, which is root, can write the file.
fn can_only_root_write(access: FileAccess) -> bool {
    let is_own = access.uid == geteuid().as_raw();
    let can_others_write = access.mode & 0o022 != 0;
    is_own && !can_others_write
}

fn not_a_copy(error: serde_json::Error) -> String {
    format!("not a copy of a pod: {}", redact::describe_json_error(&error))
}

/// Returns whether a decision in another format is to redirect the pod.
fn is_redirect(decision: &RawValue) -> bool {
    match serde_json::from_str::<Option<Decision<IgnoredAny>>>(decision.get()) {
        Ok(Some(Decision::Redirect(IgnoredAny))) => true,
        // The facts of the meshed pod were too large.
        Ok(None) => true,
        Ok(Some(Decision::Skip(_))) | Err(_) => false,
    }
}

/// Reads what the node's copy says about the pod. If a live agent keeps the copy but has not
/// published the pod, waits at most `longest_wait` for the agent to publish it. An unusable file
/// and a file of another format count as missing, but for that the latter may show that the pod is
/// meshed.
pub fn read_or_wait(run_dir: &Path, pod: &PodRef, longest_wait: Duration) -> NodeCopy {
    let deadline = Deadline::after(longest_wait);
    loop {
        let mut has_unusable_file = false;
        let mut is_meshed = false;
        match read(run_dir, pod) {
            Ok(Some(PublishedPod::Decision(decision))) => return NodeCopy::Decides(decision),
            Ok(Some(PublishedPod::TooLarge)) => return NodeCopy::Meshed,
            // The agent of this version may be about to replace the file.
            Ok(Some(PublishedPod::OtherFormat { is_meshed: redirects })) => is_meshed = redirects,
            Ok(None) => {}
            Err(error) => {
                tracing::debug!("linkerd-cni: pod {pod}: the node's copy is unusable: {error}");
                has_unusable_file = true;
            }
        }
        let is_kept = is_kept(run_dir);
        // The agent writes no file for a pod without a valid UID, so waiting for one is useless.
        let may_file_follow = is_kept && !has_unusable_file && path(run_dir, pod).is_ok();
        if may_file_follow && !deadline.has_passed() {
            thread::sleep(POLL_INTERVAL.min(deadline.remaining()));
            continue;
        }
        return copy_without_decision(is_meshed, is_kept);
    }
}

/// Returns what the copy says about a pod without a readable decision.
fn copy_without_decision(is_meshed: bool, is_kept: bool) -> NodeCopy {
    if is_meshed {
        NodeCopy::Meshed
    } else if is_kept {
        NodeCopy::Lacks
    } else {
        NodeCopy::Unkept
    }
}

/// Creates the directory of the copy.
pub fn create(run_dir: &Path) -> Result<(), files::Error> {
    let path = dir(run_dir);
    match DirBuilder::new().recursive(true).mode(0o700).create(&path) {
        Ok(()) => Ok(()),
        Err(source) => Err(files::Error::Io { act: "create", path, source }),
    }
}

/// Writes the pod's file with the decision.
pub fn publish(run_dir: &Path, pod: PodRef, decision: Decision<PodFacts>) -> Result<(), Error> {
    write(run_dir, pod, Some(decision))
}

/// Writes that the pod is meshed, and that its facts are too large for the copy.
pub fn publish_too_large(run_dir: &Path, pod: PodRef) -> Result<(), Error> {
    write(run_dir, pod, None)
}

fn write(run_dir: &Path, pod: PodRef, decision: Option<Decision<PodFacts>>) -> Result<(), Error> {
    let path = path(run_dir, &pod)?;
    let content = match encode(pod, decision) {
        Ok(content) => content,
        Err(error) => return Err(Error::Invalid { path, problem: error.to_string() }),
    };
    files::write(&path, &content, FileAccess::own(0o600))?;
    Ok(())
}

fn encode(pod: PodRef, decision: Option<Decision<PodFacts>>) -> serde_json::Result<Vec<u8>> {
    let PodRef { namespace, name, uid } = pod;
    let decision = to_raw_value(&decision)?;
    serde_json::to_vec(&PodCopy { format: format(), namespace, name, uid, decision })
}

/// Removes the pod's file. Returns whether there was one.
pub fn remove(run_dir: &Path, pod: &PodRef) -> Result<bool, files::Error> {
    match path(run_dir, pod) {
        Ok(path) => files::remove(&path),
        Err(_) => Ok(false),
    }
}

/// Removes the files of all pods whose UID is not in `kept_uids`, and returns the failures.
/// Temporary files stay, because another agent may be writing one of them.
pub fn retain(run_dir: &Path, kept_uids: &BTreeSet<String>) -> Vec<files::Error> {
    remove_files(&dir(run_dir), |name| {
        name != LOCK && !files::is_temporary(name) && !kept_uids.contains(name)
    })
}

/// Removes the copy, and returns the failures.
pub fn clear(run_dir: &Path) -> Vec<files::Error> {
    let dir = dir(run_dir);
    // The lock file is removed first, because its name starts with a dot and the files are removed
    // in byte order of their names. So no plugin waits for a pod whose file has just been removed.
    let failures = remove_files(&dir, |_| true);
    // This fails if a file could not be removed, or if another agent writes a file. The directory
    // then stays.
    let _ = fs::remove_dir(&dir);
    failures
}

/// Removes the files in `dir` for whose names `is_unwanted` returns true. Returns the failures.
fn remove_files(dir: &Path, is_unwanted: impl Fn(&str) -> bool) -> Vec<files::Error> {
    let names = match files::file_names(dir) {
        Ok(names) => names,
        Err(error) if error.is_missing() => return Vec::new(),
        Err(error) => return vec![error],
    };
    let mut failures = Vec::new();
    for name in names {
        if is_unwanted(&name)
            && let Err(error) = files::remove(&dir.join(&name))
        {
            failures.push(error);
        }
    }
    failures
}

fn dir(run_dir: &Path) -> PathBuf {
    run_dir.join(DIR)
}

/// Returns the path of the pod's file. Fails if the UID is missing or cannot be a file name,
/// because the manifest of a static pod may set any text as the UID.
fn path(run_dir: &Path, pod: &PodRef) -> Result<PathBuf, Error> {
    if pod.uid.is_empty() || !is_name(&pod.uid) {
        return Err(Error::Uid(pod.clone()));
    }
    Ok(dir(run_dir).join(&pod.uid))
}

/// The lock that an agent holds while it keeps the copy. It is released when the value is dropped
/// or the process ends.
///
/// The lock is a read lock on the open file, so that several agents can hold it at once. The plugin
/// takes no lock: it asks the kernel whether a write lock would conflict with an agent's lock.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Opens the lock file, and takes the lock. Fails if the directory of the copy does not exist.
    pub fn take(run_dir: &Path) -> Result<Lock, files::Error> {
        let path = dir(run_dir).join(LOCK);
        match open_and_lock(&path) {
            Ok(file) => Ok(Lock(file)),
            Err(source) => Err(files::Error::Io { act: "lock", path, source }),
        }
    }

    /// Returns whether the locked file is still at the path of the lock file. Otherwise plugins do
    /// not find the lock.
    pub fn is_in_place(&self, run_dir: &Path) -> bool {
        let Ok(locked) = self.0.metadata() else { return false };
        match fs::symlink_metadata(dir(run_dir).join(LOCK)) {
            Ok(at_path) => at_path.dev() == locked.dev() && at_path.ino() == locked.ino(),
            Err(_) => false,
        }
    }
}

fn open_and_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_of_whole_file(libc::F_RDLCK)))?;
    Ok(file)
}

impl Drop for Lock {
    /// Releases the lock explicitly. Closing the file might not release it, because a child process
    /// that is being started has the file open, too.
    fn drop(&mut self) {
        let _ = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&lock_of_whole_file(libc::F_UNLCK)));
    }
}

/// Whether a live agent keeps the copy. If so, a pod without a file is one that the agent has not
/// seen yet or could not publish.
pub fn is_kept(run_dir: &Path) -> bool {
    let Ok(file) = File::open(dir(run_dir).join(LOCK)) else { return false };
    // The kernel replaces the write lock in `lock` by the lock that conflicts with it.
    let mut lock = lock_of_whole_file(libc::F_WRLCK);
    if fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).is_err() {
        return false;
    }
    c_int::from(lock.l_type) == libc::F_RDLCK
}

/// Describes a lock of this type on the whole file. `l_pid` must be 0 for a lock of an open file.
fn lock_of_whole_file(kind: c_int) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests;
