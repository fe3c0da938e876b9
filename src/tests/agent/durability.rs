//! Tests that files survive a power failure: the agent syncs each file before renaming it, and the
//! directory afterwards. A test cannot cut the power, so it traces the system calls with strace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::child::has_strace;
use crate::node::{CONF, Node};
use crate::operations::trace;

/// System calls that write, sync, rename or remove files.
const CALLS: &str = "trace=write,copy_file_range,sendfile,ftruncate,fsync,fdatasync,rename,renameat,renameat2,link,\
                     linkat,symlink,symlinkat,unlink,unlinkat";

/// A system call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operation {
    Write(PathBuf),
    Sync(PathBuf),
    Name { from: PathBuf, to: PathBuf },
    Remove(PathBuf),
}

/// Returns the paths of the file descriptors in a line of strace, such as `fsync(7</tmp/x>) = 0`.
fn descriptors(line: &str) -> Vec<PathBuf> {
    let parts = line.split('<').skip(1);
    parts.filter_map(|part| Some(part.split_once('>')?.0.into())).collect()
}

fn operation(line: &str) -> Option<Operation> {
    let (call, result) = line.rsplit_once(" = ")?;
    if result.starts_with(['-', '?']) {
        return None;
    }
    let mut names = call.split('"').skip(1).step_by(2).map(PathBuf::from);
    let mut files = descriptors(call).into_iter();
    Some(match call.split('(').next()? {
        "write" | "ftruncate" | "sendfile" => Operation::Write(files.next()?),
        "copy_file_range" => Operation::Write(files.next_back()?),
        "fsync" | "fdatasync" => Operation::Sync(files.next()?),
        "unlink" | "unlinkat" => Operation::Remove(names.next()?),
        _ => Operation::Name { from: names.next()?, to: names.next()? },
    })
}

/// Traces an agent that installs and uninstalls. Returns the operations of its main thread, in
/// order.
fn operations(node: &Node) -> Vec<Operation> {
    trace(node, CALLS).lines().filter_map(operation).collect()
}

fn is_temporary(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tmp")
}

/// Returns the operations up to the next one that renames or removes a file.
fn until_next_rename(after: &[Operation]) -> &[Operation] {
    let next = after.iter().position(|one| match one {
        Operation::Name { .. } => true,
        Operation::Remove(path) => !is_temporary(path),
        _ => false,
    });
    &after[..next.unwrap_or(after.len())]
}

/// Asserts that the file `to` was written under the name `from`, synced, renamed at `index`, and
/// that its directory was synced before any other name changed.
fn assert_durable(operations: &[Operation], index: usize, from: &Path, to: &Path) {
    let (before, after) = (&operations[..index], &operations[index + 1..]);
    let written = before.iter().rposition(|one| *one == Operation::Write(from.to_owned()));
    let written = written.unwrap_or_else(|| panic!("{to:?} is not written: {operations:#?}"));
    let is_synced = before[written..].contains(&Operation::Sync(from.to_owned()));
    assert!(is_synced, "{to:?} gets its name before it is synced: {operations:#?}");
    let is_synced = until_next_rename(after).contains(&sync_of_directory(to));
    assert!(is_synced, "the directory of {to:?} is not synced: {operations:#?}");
}

/// Asserts that the file that got the name `temporary` at `index` was removed, and its directory
/// synced afterwards.
fn assert_removed(operations: &[Operation], index: usize, temporary: &Path) {
    let after = &operations[index + 1..];
    let removed = after.iter().position(|one| *one == Operation::Remove(temporary.to_owned()));
    let removed = removed.unwrap_or_else(|| panic!("{temporary:?} stays: {operations:#?}"));
    let is_synced =
        until_next_rename(&after[removed + 1..]).contains(&sync_of_directory(temporary));
    assert!(is_synced, "the directory of {temporary:?} is not synced: {operations:#?}");
}

fn sync_of_directory(path: &Path) -> Operation {
    Operation::Sync(path.parent().unwrap().to_owned())
}

#[test]
fn each_file_is_written_synced_renamed_and_its_directory_synced() {
    if !has_strace() {
        return;
    }
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    let operations = operations(&node);
    assert_eq!(node.tree(), before);
    let (mut named, mut removed) = (BTreeSet::new(), BTreeSet::new());
    let name = |path: &Path| path.strip_prefix(node.root()).unwrap().display().to_string();
    for (index, operation) in operations.iter().enumerate() {
        let Operation::Name { from, to } = operation else {
            continue;
        };
        if is_temporary(to) {
            assert_removed(&operations, index, to);
            removed.insert(name(from));
        } else if !to.ends_with(".linkerd-cni.sock") {
            assert_durable(&operations, index, from, to);
            named.insert(name(to));
        }
    }
    let installed = [
        "bin/linkerd-cni",
        "etc/.linkerd-cni-state",
        "etc/10-calico.conflist",
        "etc/20-net.conflist",
        "etc/kubeconfig.json",
    ];
    let restored = "etc/20-net.conf";
    let wanted = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let all: BTreeSet<String> = wanted(&[&installed[..], &[restored]].concat());
    assert_eq!(named, all, "{operations:#?}");
    // The conflist of the primary CNI is restored, not removed.
    let removable: BTreeSet<String> =
        all.into_iter().filter(|name| name != "etc/10-calico.conflist").collect();
    assert_eq!(removed, removable, "{operations:#?}");
}
