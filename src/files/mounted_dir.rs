//! Notices that a mounted directory was removed or renamed on the node, and perhaps created again.
//! The container does not see the new directory, because the mount keeps showing the directory that
//! existed when the container started.
//!
//! The fourth field of a line in `/proc/self/mountinfo` is the present path of the mounted
//! directory in its file system, with `//deleted` appended if the directory was removed
//! (proc_pid_mountinfo(5)). So the field changes when the directory is removed or renamed.

use std::fs;
use std::path::{Path, PathBuf};

/// A directory of the node that is mounted into this container.
#[derive(Debug)]
pub struct MountedDir {
    path: PathBuf,
    /// The mount with the directory. `None` if the mounts cannot be read.
    mount: Option<Mount>,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
struct Mount {
    id: String,
    /// Path of the mounted directory in its file system.
    root: String,
    /// Path at which this container sees the directory.
    point: PathBuf,
}

impl MountedDir {
    /// Returns the directory as it is mounted when the program starts.
    pub fn at_start(path: &Path) -> MountedDir {
        MountedDir { path: path.to_owned(), mount: find_mount(&read_mountinfo(), path) }
    }

    /// Returns why the mount no longer shows the node's directory, and what to do. `None` if the
    /// mount is unchanged or cannot be read.
    pub fn stale_reason(&self) -> Option<String> {
        self.stale_reason_in(&read_mountinfo())
    }

    /// Does the work of [`MountedDir::stale_reason`] for the text of `/proc/self/mountinfo`.
    fn stale_reason_in(&self, mountinfo: &str) -> Option<String> {
        let first = self.mount.as_ref()?;
        let current = parse_mounts(mountinfo).find(|mount| mount.id == first.id)?;
        if current.root == first.root && !current.root.ends_with("//deleted") {
            return None;
        }
        Some(format!(
            "{} was removed or renamed on the node, so this container does not see the node's \
             directory; the kubelet restarts the container, otherwise delete this pod",
            self.path.display()
        ))
    }
}

fn read_mountinfo() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Returns the mount that contains `dir`: of those with the longest mount point, the last one.
fn find_mount(mountinfo: &str, dir: &Path) -> Option<Mount> {
    parse_mounts(mountinfo)
        .filter(|mount| dir.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

fn parse_mounts(mountinfo: &str) -> impl Iterator<Item = Mount> {
    mountinfo.lines().filter_map(parse_mount)
}

/// Parses a line of `mountinfo`: ID, parent's ID, device, root, mount point, and other fields.
fn parse_mount(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    let id = fields.next()?;
    let _parent_id = fields.next()?;
    let _device = fields.next()?;
    let root = fields.next()?;
    let point = fields.next()?;
    Some(Mount { id: id.to_owned(), root: root.to_owned(), point: point.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
100 1 0:30 / / ro,relatime - overlay overlay rw
101 100 8:1 /etc/cni/net.d /host/etc/cni/net.d rw,relatime - ext4 /dev/sda1 rw
102 100 8:1 /snap/microk8s /host/snap/microk8s rw,relatime - ext4 /dev/sda1 rw
";

    fn is_stale(dir: &str, now: &str) -> bool {
        let path = PathBuf::from(dir);
        let mount = find_mount(BEFORE, &path);
        MountedDir { path, mount }.stale_reason_in(now).is_some()
    }

    #[test]
    fn mounted_directory_is_stale_once_removed_or_renamed_on_the_node() {
        let net_dir = "/host/etc/cni/net.d";
        assert!(!is_stale(net_dir, BEFORE));
        for root in ["/etc/cni/net.d//deleted", "/etc/cni/net.d.old", "/etc/cni.old/net.d"] {
            let now = BEFORE.replace("8:1 /etc/cni/net.d ", &format!("8:1 {root} "));
            assert!(is_stale(net_dir, &now), "{root}");
            for other in ["/host/snap/microk8s/current/net", "/host/etc", "/opt/cni/bin"] {
                assert!(!is_stale(other, &now), "{other}");
            }
        }
        assert!(is_stale(
            "/host/snap/microk8s/current/net",
            &BEFORE.replace("8:1 /snap", "8:1 /x")
        ));
    }

    #[test]
    fn directory_is_not_stale_if_a_mount_is_added_or_cannot_be_read() {
        let net_dir = "/host/etc/cni/net.d";
        let with_new_mount = format!("{BEFORE}103 101 8:2 / {net_dir} rw - ext4 /dev/sdb rw\n");
        assert!(!is_stale(net_dir, &with_new_mount));
        assert!(!is_stale(net_dir, ""));
    }

    #[test]
    fn directory_that_was_removed_before_the_start_is_stale() {
        let now = BEFORE.replace("net.d /host", "net.d//deleted /host");
        let path = PathBuf::from("/host/etc/cni/net.d");
        let mount = find_mount(&now, &path);
        assert!(MountedDir { path, mount }.stale_reason_in(&now).is_some());
    }
}
