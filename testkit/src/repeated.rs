//! Work that is repeated on a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Repeats work until [`Repeated::finish`].
pub struct Repeated<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Repeated<T> {
    /// Calls `work` with `state` again and again, with pauses of `pause`.
    pub fn start(pause: Duration, mut state: T, work: impl Fn(&mut T) + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                work(&mut state);
                thread::sleep(pause);
            }
            state
        });
        Repeated { stop, thread }
    }

    /// Ends the thread and returns the state. Panics if the work has panicked.
    pub fn finish(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
