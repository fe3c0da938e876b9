//! A net dir that is removed or renamed on the node while the controller's container has it mounted.
//! Needs root.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::api::Api;
use crate::controller::Controller;
use crate::mounts::{bind, in_mount_namespace};

const SAID: &str = "etc/cni/net.d was removed or renamed on the node";

#[test]
fn a_net_dir_that_is_made_anew_on_the_node_fails_live_until_the_container_is_restarted() {
    in_mount_namespace(|| {
        let remove: fn(&Path) = |dir| fs::remove_dir_all(dir).unwrap();
        let rename: fn(&Path) = |dir| fs::rename(dir, dir.with_extension("old")).unwrap();
        for lose in [remove, rename] {
            let (api, root) = (Api::start(), TempDir::new().unwrap());
            let on_node = root.path().join("node");
            let prefix = root.path().join("host");
            let mounted = prefix.join("etc/cni/net.d");
            fs::create_dir(&on_node).unwrap();
            fs::create_dir_all(&mounted).unwrap();
            bind(&on_node, &mounted);
            let start =
                || Controller::with(&api, &[&format!("--mount-prefix={}", prefix.display())]);
            let controller = start();
            assert_eq!(controller.get("/live").1, "alive\n");

            lose(&on_node);
            fs::create_dir(&on_node).unwrap();
            let (status, why) = controller.get("/live");
            assert_eq!(status, 500);
            assert!(why.contains(SAID) && why.contains("delete this pod"), "{why}");
            controller.logs(SAID);

            // The kubelet restarts the container.
            drop(controller);
            umount2(&mounted, MntFlags::MNT_DETACH).unwrap();
            bind(&on_node, &mounted);
            assert_eq!(start().get("/live").1, "alive\n");
            umount2(&mounted, MntFlags::MNT_DETACH).unwrap();
        }
    });
}
