//! Notices that a mounted directory was removed or renamed on the node, and perhaps made anew. The mount
//! keeps showing the directory that existed when the container started.
//!
//! The fourth field of a line in `/proc/self/mountinfo` is the present path of the mounted directory
//! in its file system, with `//deleted` appended if it was removed (proc_pid_mountinfo(5)). So the
//! field changes in both cases.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct MountedDir {
    path: PathBuf,
    /// ID of the mount, and the mounted directory. `None` if the mounts cannot be read.
    mount: Option<(String, String)>,
}

impl MountedDir {
    pub fn at_start(path: &Path) -> MountedDir {
        MountedDir { path: path.to_owned(), mount: mount_of(&read(), path) }
    }

    /// Says why the directory is no longer the node's, and what to do.
    pub fn stale(&self) -> Option<String> {
        self.stale_in(&read())
    }

    fn stale_in(&self, mountinfo: &str) -> Option<String> {
        let (id, before) = self.mount.as_ref()?;
        let (_, (_, now)) = mounts(mountinfo).find(|(_, mount)| mount.0 == *id)?;
        (now != *before || now.ends_with("//deleted")).then(|| {
            format!(
                "{} was removed or renamed on the node, so this container does not see the node's \
                 directory; the kubelet restarts the container, otherwise delete this pod",
                self.path.display()
            )
        })
    }
}

fn read() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Returns the mount that contains `dir`: of those with the longest mount point, the last one.
fn mount_of(mountinfo: &str, dir: &Path) -> Option<(String, String)> {
    let around = mounts(mountinfo).filter(|(point, _)| dir.starts_with(point));
    around.max_by_key(|(point, _)| point.components().count()).map(|(_, mount)| mount)
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = (&Path, (String, String))> {
    mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (id, root) = (fields.next()?.to_owned(), fields.nth(2)?.to_owned());
        Some((Path::new(fields.next()?), (id, root)))
    })
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
        let mount = mount_of(BEFORE, &path);
        MountedDir { path, mount }.stale_in(now).is_some()
    }

    #[test]
    fn a_mounted_directory_is_stale_once_it_is_removed_or_renamed_on_the_node() {
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
    fn a_mount_that_appears_or_that_cannot_be_read_is_not_stale() {
        let net_dir = "/host/etc/cni/net.d";
        let over = format!("{BEFORE}103 101 8:2 / {net_dir} rw - ext4 /dev/sdb rw\n");
        assert!(!is_stale(net_dir, &over));
        assert!(!is_stale(net_dir, ""));
    }

    #[test]
    fn a_directory_that_was_removed_before_the_start_is_stale() {
        let now = BEFORE.replace("net.d /host", "net.d//deleted /host");
        let path = PathBuf::from("/host/etc/cni/net.d");
        let mount = mount_of(&now, &path);
        assert!(MountedDir { path, mount }.stale_in(&now).is_some());
    }
}
