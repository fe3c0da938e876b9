//! Child processes that must end in time.
//!
//! A child that leads a process group (`process_group(0)`) is killed with all processes of its
//! group.

use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::deadline::Deadline;

/// Longest wait for the end of a killed child. The wait is limited, because a process that waits
/// for a hung disk does not end, not even by SIGKILL.
const REAP_BUDGET: Duration = Duration::from_millis(500);
/// First pause between two checks of a child. It is short, because a child has usually almost ended
/// when the wait begins. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(50);
/// Longest pause between two checks of a child.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Waits until the child has exited, and reaps it. `None`: the child still runs at the deadline.
pub fn wait(child: &mut Child, deadline: Deadline) -> io::Result<Option<ExitStatus>> {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if deadline.has_passed() {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Kills a child that [`wait`] has not reaped, with the process group that it leads, and reaps it.
/// Takes at most [`REAP_BUDGET`].
pub fn kill(child: &mut Child) {
    kill_group(child.id() as i32);
    // A child that leads no process group was not killed with a group, so it is killed by itself.
    // This fails only if the child has exited.
    let _ = child.kill();
    // If the child does not end in time, this process leaves it to init, which reaps the child
    // after this process has ended.
    let _ = wait(child, Deadline::after(REAP_BUDGET));
}

/// Kills all processes of the group.
pub fn kill_group(group: i32) {
    // The call fails only if the processes have ended, or if there is no such group.
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

#[cfg(test)]
pub mod tests;
