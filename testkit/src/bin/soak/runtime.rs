//! Restarts of the container runtime.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::node::{kill_component, start_missing_components};
use crate::outages::Cause;
use crate::world::World;

/// Bound of the time in which containerd serves pods after its restart.
const RUNTIME: Duration = Duration::from_secs(120);
const CONTAINERD: &str = "/run/linkerd2-cni-cluster/containerd.sock";

/// Kills containerd and starts it again. All pods have to survive that.
pub fn restart(world: &mut World) {
    world.load.running.survive(&world.ledger, || {
        {
            let _down = world.outages.open(Cause::Node);
            kill_component("containerd");
            start_missing_components();
            start_cri();
        }
        world.recovered(Instant::now(), || true);
    });
}

/// Restarts containerd until it serves pods. It runs without that service if this machine has no inotify instance left
/// (`fs.inotify.max_user_instances`), which all clusters on the machine share.
fn start_cri() {
    let begin = Instant::now();
    while !has_cri() {
        assert!(begin.elapsed() < RUNTIME, "containerd does not serve pods; see its log");
        println!("         containerd does not serve pods; it is started again");
        thread::sleep(Duration::from_secs(2));
        kill_component("containerd");
        start_missing_components();
    }
}

fn has_cri() -> bool {
    let list = ["--address", CONTAINERD, "plugins", "list"];
    let output = Command::new("ctr").args(list).output().expect("ctr runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut cri = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("cri"));
    cri.any(|line| line.trim_end().ends_with("ok"))
}
