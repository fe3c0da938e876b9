//! Deadlines for work that must not hang: polls and threads.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// The time at which work has to end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn after(budget: Duration) -> Self {
        Deadline(Instant::now() + budget)
    }

    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until one of `fds` is ready. Fails with `ETIMEDOUT` at the deadline.
    pub fn poll(self, fds: &mut [PollFd<'_>]) -> Result<(), Errno> {
        while !self.has_passed() {
            // The timeout is rounded up to whole milliseconds. Rounded down, it would be 0 ms in
            // the last millisecond, so that this loop would spin.
            let timeout = self.remaining() + Duration::from_micros(999);
            match poll(fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
                Ok(0) | Err(Errno::EINTR) => {}
                done => return done.map(drop),
            }
        }
        Err(Errno::ETIMEDOUT)
    }
}

/// Runs `work` on a thread called `name` and waits at most `budget` for the result. After a
/// timeout, the thread keeps running and the caller should end the process. The error is the rest
/// of a sentence that starts with the name of the work.
pub fn run_within<T: Send + 'static>(
    name: &str,
    budget: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name(name.into()).spawn(move || {
        // Sending fails only after a timeout, when the receiver is gone.
        let _ = sender.send(work());
    });
    thread.map_err(|error| format!("cannot be started: {error}"))?;
    receiver.recv_timeout(budget).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("timed out after {budget:?}"),
        RecvTimeoutError::Disconnected => "ended without a result".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsFd as _;

    use nix::poll::PollFlags;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_poll_ends_at_the_deadline_and_not_before() {
        let (reader, writer) = io::pipe().unwrap();
        let fd = || [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        let deadline = Deadline::after(SHORT);
        assert_eq!(deadline.poll(&mut fd()), Err(Errno::ETIMEDOUT));
        assert!(deadline.has_passed());
        drop(writer);
        assert_eq!(Deadline::after(Duration::from_secs(60)).poll(&mut fd()), Ok(()));
    }

    #[test]
    fn work_that_hangs_times_out_and_work_that_panics_ends_without_a_result() {
        assert_eq!(run_within("x", Duration::from_secs(60), || 7).unwrap(), 7);
        let (_sender, never) = mpsc::channel::<()>();
        let hung = run_within("x", SHORT, move || never.recv());
        assert_eq!(hung.unwrap_err(), "timed out after 20ms");
        let panicked = run_within("x", Duration::from_secs(60), || panic!("expected"));
        assert_eq!(panicked, Err::<(), _>("ended without a result".to_owned()));
    }
}
