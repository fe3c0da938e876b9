//! Restarts of the container runtime.

use std::thread;
use std::time::{Duration, Instant};

use crate::node::{kill_component, start_missing_components};
use crate::outages::{self, Cause};
use crate::running;
use crate::world::World;
use testkit::cluster::containers::ctr;

/// Bound of the time in which containerd serves pods after its restart.
const RUNTIME: Duration = Duration::from_secs(120);

/// Kills containerd and starts it again. All pods have to survive that.
pub fn restart(world: &mut World) {
    running::survive(|| {
        {
            let _down = outages::open(Cause::Node);
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
    let text = ctr(&["plugins", "list"]);
    let mut cri = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("cri"));
    cri.any(|line| line.trim_end().ends_with("ok"))
}
